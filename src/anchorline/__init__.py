"""Anchorline: an OpenAI-compatible server over llama.cpp that never prefills the same prefix twice."""

__version__ = "0.1.0"
