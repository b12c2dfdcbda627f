"""Server-sent events, written by hand."""

from __future__ import annotations

import msgspec

from anchorline.api.errors import ApiError

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # reverse proxies would otherwise hold events back
}
DONE = b"data: [DONE]\n\n"
PING = b": waiting\n\n"
"""A comment: keeps a connection open while nothing is to be said."""

_encoder = msgspec.json.Encoder()


def event(chunk: msgspec.Struct) -> bytes:
    """One chunk as an event."""
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    """One event that says what it is."""
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(body) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """An error after the reply has begun; no ``[DONE]`` follows it."""
    return b"data: " + _encoder.encode(error.body()) + b"\n\n"
