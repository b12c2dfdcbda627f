"""Workloads and comparisons over HTTP: this package is a client and knows nothing of the engine."""
