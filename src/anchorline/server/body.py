"""Reading a request body within its limit."""

from __future__ import annotations

from starlette.requests import Request

from anchorline.errors import BodyTooLarge


async def read_body(request: Request, *, limit_bytes: int) -> bytes:
    """The whole body, whatever its content type.

    Stops reading as soon as it is over ``limit_bytes``. Raises BodyTooLarge, and starlette's
    ClientDisconnect when the client leaves meanwhile.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit_bytes} bytes (--max-body-bytes)", code="body_too_large")
