"""Reading a request body within its limit."""

from __future__ import annotations

import asyncio
import codecs

from starlette.exceptions import HTTPException
from starlette.requests import Request

from anchorline.errors import BodyTooLarge
from anchorline.limits import Limits


async def read_body(request: Request, *, limits: Limits) -> bytes:
    """The whole body, whatever its content type, without the mark that some editors put before UTF-8.

    Stops reading as soon as it is over ``limits.body_bytes``. Raises BodyTooLarge, starlette's
    HTTPException (408) when it takes longer than ``limits.request_seconds``, and its ClientDisconnect
    when the client leaves meanwhile.
    """
    limit_bytes = limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.request_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                parts.append(part)
    except TimeoutError:
        message = f"the body was not complete after {limits.request_seconds:g} seconds (--request-timeout)"
        raise HTTPException(408, message, headers={"connection": "close"}) from None
    return b"".join(parts).removeprefix(codecs.BOM_UTF8)


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit_bytes} bytes (--max-body-bytes)", code="body_too_large")
