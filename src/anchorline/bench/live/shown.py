"""The parts of a recorded body that a template shows, as bytes: what prompts share where a server tells no token ids.

It stands for a prompt that has the tools in front, then the system prompt, then the messages, as most templates write
them, and nothing besides. How far two of them agree is known to four bytes, about one token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from anchorline.bench.live.salt import BILLING_HEADER
from anchorline.bench.oracle import Tokens

SYMBOL_BYTES = 4
HIDDEN = frozenset(
    {"id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status", "signature", "encrypted_content"}
)
"""Keys of messages and their parts that no template shows: ids differ per session, marks and signatures move."""
PART_KEYS = frozenset({"role", "type", "name"})
"""One of these keys is in every message and part; arguments, whatever their keys, are shown whole."""


def shown(body: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
    """What ``body``, of any protocol, shows: its bytes, four in a symbol, and the symbols where a message ends."""
    ends: list[int] = []
    text = bytearray()
    for part in _parts(body):
        text += part.encode(errors="surrogatepass")
        ends.append(len(text) // SYMBOL_BYTES)
    text += bytes(-len(text) % SYMBOL_BYTES)
    return np.frombuffer(bytes(text), dtype=np.int32), tuple(ends)


def _parts(body: Mapping[str, Any]) -> Iterator[str]:
    """The tools with the system prompt, then each message."""
    tools = (_compact(_without(tool, "cache_control")) for tool in _items(body.get("tools")))
    system = (_said(part) for part in _items(body.get("system") or body.get("instructions")) if not _is_billing(part))
    yield "\n".join((*tools, *system))
    for message in _items(body.get("messages") or body.get("input")):
        yield _said(message)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    return () if value is None else (value,)


def _is_billing(part: Any) -> bool:
    return isinstance(part, Mapping) and str(part.get("text")).startswith(BILLING_HEADER)


def _said(value: Any) -> str:
    """The texts of a message in their order, a line each: its role, what it says, its calls with their arguments."""
    if isinstance(value, Mapping) and PART_KEYS & value.keys():
        return "".join(_said(inner) for key, inner in value.items() if key not in HIDDEN and key != "type")
    if isinstance(value, list):
        return "".join(map(_said, value))
    if value is None:
        return ""
    return (value if isinstance(value, str) else _compact(value)) + "\n"


def _without(tool: Any, key: str) -> Any:
    return {name: value for name, value in tool.items() if name != key} if isinstance(tool, Mapping) else tool


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
