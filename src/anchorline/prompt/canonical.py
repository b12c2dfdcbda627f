"""``--canonical-tools``: the same tools in one order, however a client collected them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_USUAL = ("type", "function", "name", "description", "parameters", "properties", "required")
"""Keys in the order in which models have seen most tools; all others come behind them, sorted."""
_PLACES = {key: place for place, key in enumerate(_USUAL)}


def canonical_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checked tools by name, the keys of every object in one order.

    Lists within them (``enum``, ``required``, ``prefixItems``, …) stay as they are, and so does every value: what the
    schemas mean is the same. Raises RecursionError for nesting that no JSON text could have.
    """
    return sorted((_ordered(tool) for tool in tools), key=json.dumps)  # which begins with type and name


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: (_PLACES.get(key, len(_USUAL)), key))
        return {key: _ordered(value[key]) for key in keys}
    return [_ordered(item) for item in value] if isinstance(value, list | tuple) else value
