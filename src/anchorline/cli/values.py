"""How values are spelled on the command line: sizes, layers, devices, splits, overrides, adapters."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import click

from anchorline.config import GPU_LAYERS_ALL, GPU_LAYERS_AUTO, MetadataValue
from anchorline.numbers import FiniteRangeType

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_PACES = {"recorded": 1.0, "none": math.inf}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of ``8GiB``, ``512m``, ``1.5G`` or a bare number; units are powers of 1024.

    Raises ValueError when the text is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write 8GiB, 512MiB or a number of bytes")
    return int(Decimal(found.group(1)) * 1024 ** _POWERS[found.group(2).lower()])


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

    @property
    def range(self) -> str:
        """For people."""
        return f"{format_size(self.minimum_bytes)} to {format_size(self.maximum_bytes)}"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            nbytes = parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self.minimum_bytes <= nbytes <= self.maximum_bytes:
            self.fail(f"{value} is not in the range {self.range}.", param, ctx)
        return nbytes


class SizeOrShareType(click.ParamType[int | float]):
    """A number of bytes up to a limit, or a percentage, given as a fraction (a float)."""

    name = "size or percentage"

    def __init__(self, *, maximum_bytes: int) -> None:
        self.size = SizeType(minimum_bytes=0, maximum_bytes=maximum_bytes)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        text = str(value).strip()
        if not text.endswith("%"):
            return self.size.convert(value, param, ctx)
        percent = FiniteRangeType(min=0, max=100).convert(text.removesuffix("%").strip(), param, ctx)
        return percent / 100


class PaceType(click.ParamType[float]):
    """How many times as fast as recorded: ``recorded`` (once), a number, or ``none`` for no time in between."""

    name = "recorded|n|none"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip().lower()
        if text in _PACES:
            return _PACES[text]
        try:
            pace = float(text)
        except ValueError:
            self.fail(f"{value!r} is neither 'recorded' nor 'none' nor a number.", param, ctx)
        if not 0 < pace < math.inf:
            self.fail(f"{value!r}: a pace must be more than 0; 'none' waits for replies alone.", param, ctx)
        return pace


class GpuLayersType(click.ParamType[int]):
    """A number of layers, ``all``, or ``auto``."""

    name = "layers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().lower()
        if text in ("auto", "-1"):
            return GPU_LAYERS_AUTO
        if text == "all":
            return GPU_LAYERS_ALL
        if not text.isdecimal() or len(text) > 9:
            self.fail(f"{value!r} is neither a number of layers nor 'all' or 'auto'.", param, ctx)
        return int(text)


class TensorSplitType(click.ParamType[tuple[float, ...]]):
    """Shares separated by commas or slashes, one for each GPU."""

    name = "shares"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            shares = tuple(float(part) for part in re.split("[,/]", str(value)))
        except ValueError:
            self.fail(f"{value!r} is not a list of shares like 3,1.", param, ctx)
        # `not >= 0` also refuses NaN; an infinite share leaves nothing for the others.
        if any(not 0 <= share < float("inf") for share in shares) or not any(shares):
            self.fail(f"{value!r}: each share must be 0 or more, and one of them more than 0.", param, ctx)
        return shares


class DeviceListType(click.ParamType[tuple[str, ...]]):
    """Comma-separated names of devices, or ``none``."""

    name = "dev1,dev2,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail(f"{value!r} is not a list of devices like CUDA0,CUDA1.", param, ctx)
        return names


class TensorOverrideType(click.ParamType[tuple[tuple[str, str], ...]]):
    """Comma-separated ``PATTERN=BUFFER``."""

    name = "pattern=buffer,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, str], ...]:
        if isinstance(value, tuple):
            return value
        overrides = []
        for part in str(value).split(","):
            pattern, equals, buffer = part.partition("=")
            if not (pattern and equals and buffer):
                self.fail(f"{part!r} is not PATTERN=BUFFER; a comma ends an override.", param, ctx)
            overrides.append((pattern, buffer))
        return tuple(overrides)


class MetadataOverrideType(click.ParamType[tuple[tuple[str, MetadataValue], ...]]):
    """Comma-separated ``KEY=TYPE:VALUE``; one that holds a comma is put in double quotes."""

    name = "key=type:value,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, MetadataValue], ...]:
        if isinstance(value, tuple):
            return value
        overrides = []
        for part in _parts(str(value), self, param, ctx):
            key, _equals, typed = part.partition("=")
            kind, colon, text = typed.partition(":")
            if not (key and colon and kind in _METADATA_TYPES):
                self.fail(f"{part!r} is not KEY=TYPE:VALUE with a type of {_METADATA_NAMES}.", param, ctx)
            try:
                overrides.append((key, _METADATA_TYPES[kind](text)))
            except (ValueError, KeyError):
                self.fail(f"{part!r}: {text!r} is no {kind} value.", param, ctx)
        return tuple(overrides)


class AdapterType(click.ParamType[tuple[tuple[str, float], ...]]):
    """Comma-separated ``PATH`` or ``PATH:SCALE``; a colon that no number follows belongs to the path.

    One that holds a comma is put in double quotes.
    """

    name = "path[:scale],..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, float], ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._adapter(part, param, ctx) for part in _parts(str(value), self, param, ctx))

    def _adapter(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        path, colon, scale = text.rpartition(":")
        if not colon:
            return text, 1.0
        try:
            number = float(scale)
        except ValueError:
            return text, 1.0
        if not path or not -1e6 < number < 1e6:
            self.fail(f"{text!r} is not PATH or PATH:SCALE with a scale between -1e6 and 1e6.", param, ctx)
        return path, number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


_METADATA_TYPES: dict[str, Callable[[str], MetadataValue]] = {
    "int": int,
    "float": _finite,
    "bool": {"true": True, "false": False}.__getitem__,
    "str": str,
}
_METADATA_NAMES = ", ".join(_METADATA_TYPES)


def _parts(
    text: str, kind: click.ParamType[Any], param: click.Parameter | None, ctx: click.Context | None
) -> list[str]:
    """The comma-separated parts of a value, none of them empty."""
    try:
        parts = [part for row in csv.reader([text], strict=True) for part in row]
    except csv.Error as error:
        kind.fail(f"{text!r} is not a comma-separated list: {error}.", param, ctx)
    if not parts or not all(parts):
        kind.fail(f"{text!r} is not a comma-separated list without empty parts.", param, ctx)
    return parts
