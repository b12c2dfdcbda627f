"""Every metric, declared once."""
