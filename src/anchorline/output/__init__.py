"""Tokens to text: whole UTF-8, stop strings, structure, and the events the wire formats are made from."""
