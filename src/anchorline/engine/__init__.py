"""The engine: the one thread that owns the model and the cache."""
