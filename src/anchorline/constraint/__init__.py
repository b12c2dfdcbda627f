"""Keeping replies within a JSON schema, a regular expression or a grammar, over llguidance."""
