"""Thinking in the Messages protocol: the switch, and signatures.

A client shows a thinking block's signature again with the block. It may ask for blocks without their
text (``display: omitted``); then the signature holds the text, so that the next prompt has it again.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from anchorline.errors import RequestError

_SWITCHES: dict[str, bool | None] = {"enabled": True, "adaptive": True, "disabled": False, "between_tools": None}
_MARK = b"anchorline:"


def thinking_switch(thinking: Mapping[str, Any] | None) -> bool | None:
    """What templates call ``enable_thinking``; None leaves it to the template."""
    if thinking is None:
        return None
    kind = thinking.get("type")
    if not isinstance(kind, str) or kind not in _SWITCHES:
        raise RequestError(f"thinking.type must be one of {', '.join(_SWITCHES)}", field="thinking.type")
    return _SWITCHES[kind]


def thinking_shown(thinking: Mapping[str, Any] | None) -> bool:
    """Whether the text of thinking is sent."""
    return thinking is None or thinking.get("display") != "omitted"


def signature(hidden: str) -> str:
    """An opaque text that is never empty and holds ``hidden``."""
    return base64.b64encode(_MARK + hidden.encode()).decode()


def hidden_thinking(given: object) -> str:
    """What ``signature`` was given, or "" for a signature of others."""
    if not isinstance(given, str):
        return ""
    try:
        content = base64.b64decode(given, validate=True)
        return content.removeprefix(_MARK).decode() if content.startswith(_MARK) else ""
    except (binascii.Error, ValueError):  # not base64, not ASCII, not UTF-8
        return ""
