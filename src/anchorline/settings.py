"""How a setting is declared: a dataclass field that knows its flag, its help and what it may be."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from anchorline.errors import ConfigError


def setting(
    default: Any,
    flag: str,
    help: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field that carries its command-line flag, aliases, help, choices and limits.

    The command line refuses a value outside minimum … maximum; None means no limit.
    """
    metadata = {
        "flag": flag,
        "help": help,
        "aliases": aliases,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
    }
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def in_range(flag: str, value: int, low: int, high: int) -> None:
    """Raises ConfigError naming the flag when ``value`` lies outside low … high."""
    if not low <= value <= high:
        raise ConfigError(f"{flag} must lie between {low} and {high}, not {value}")
