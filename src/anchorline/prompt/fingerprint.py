"""The tool fingerprint: a name for a set of tool schemas, for display, policy and pins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

FINGERPRINT_DIGITS = 16


def tool_json(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """The tools as compact JSON, tools and keys in the order they were sent."""
    return msgspec.json.encode(tools)


def tool_fingerprint(tools: Sequence[Mapping[str, Any]]) -> str:
    """Digest of the tools exactly as sent: another order of tools or keys is another fingerprint.

    It names things; it never decides a restore, which rests on token ids.
    """
    return fingerprint_of_json(tool_json(tools))


def fingerprint_of_json(tools_json: bytes) -> str:
    return hashlib.sha256(tools_json).hexdigest()[:FINGERPRINT_DIGITS]
