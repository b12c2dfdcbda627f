"""Trace replays through the real prompt builder, engine loop and cache, over a runtime that computes nothing."""
