"""What stands behind the ? of a URL."""

from __future__ import annotations

from anchorline.errors import RequestError


def page_size(given: str | None, *, default: int, most: int, flag: str | None = None) -> int:
    """``limit`` of a list, from 1 to ``most``, which ``flag`` sets. Raises RequestError."""
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        named = f" ({flag})" if flag else ""
        raise RequestError(f"limit must be an integer between 1 and {most}{named}", field="limit")
    return int(given)
