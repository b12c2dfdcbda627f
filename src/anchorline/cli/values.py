"""How values are spelled on the command line: sizes, layers, splits, adapters."""

from __future__ import annotations

import re

import click

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

ALL_LAYERS = -1


def parse_size(text: str) -> int:
    """Bytes of ``8GiB``, ``512m``, ``1.5G`` or a bare number; units are powers of 1024.

    Raises ValueError when the text is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 8GiB, 512MiB or a number of bytes")
    return int(float(found.group(1)) * 1024 ** _POWERS[found.group(2).lower()])


def format_size(nbytes: int) -> str:
    """A size as a person writes it: the largest unit that leaves at least 1, one decimal at most."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f}".rstrip("0").rstrip(".") + unit
        value /= 1024
    return f"{value:.1f}".rstrip("0").rstrip(".") + "TiB"


class SizeType(click.ParamType[int]):
    """A number of bytes between two limits."""

    name = "size"

    def __init__(self, *, minimum_bytes: int, maximum_bytes: int) -> None:
        self.minimum_bytes = minimum_bytes
        self.maximum_bytes = maximum_bytes

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            nbytes = parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self.minimum_bytes <= nbytes <= self.maximum_bytes:
            low, high = format_size(self.minimum_bytes), format_size(self.maximum_bytes)
            self.fail(f"{value} is not in the range {low} to {high}.", param, ctx)
        return nbytes


class GpuLayersType(click.ParamType[int]):
    """A number of layers, ``all``, or ``auto``."""

    name = "layers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text in ("all", "auto", "-1"):
            return ALL_LAYERS
        if not text.isdecimal():
            self.fail(f"{value!r} is neither a number of layers nor 'all' or 'auto'.", param, ctx)
        return int(text)


class TensorSplitType(click.ParamType[tuple[float, ...]]):
    """Comma-separated shares, one for each GPU."""

    name = "shares"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            shares = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of shares like 3,1.", param, ctx)
        # `not >= 0` also refuses NaN; an infinite share leaves nothing for the others.
        if any(not 0 <= share < float("inf") for share in shares) or not any(shares):
            self.fail(f"{value!r}: each share must be 0 or more, and one of them more than 0.", param, ctx)
        return shares


class AdapterType(click.ParamType[tuple[str, float]]):
    """``PATH`` or ``PATH:SCALE``; a colon that no number follows belongs to the path."""

    name = "path[:scale]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        path, colon, scale = str(value).rpartition(":")
        if not colon:
            return str(value), 1.0
        try:
            number = float(scale)
        except ValueError:
            return str(value), 1.0
        if not path or not -1e6 < number < 1e6:
            self.fail(f"{value!r} is not PATH or PATH:SCALE with a scale between -1e6 and 1e6.", param, ctx)
        return path, number
