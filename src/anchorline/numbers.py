"""Numbers on a command line: what is none, or none that can be used, is said in words that fit."""

from __future__ import annotations

import math

import click


class IntegerRangeType(click.IntRange):
    """An integer between two limits, one of which may be None; what is none is called so, and not a range."""

    name = "integer"


class FiniteFloatType(click.types.FloatParamType):
    """Any number but infinity and NaN."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class FiniteRangeType(click.FloatRange):
    """A number between two limits, one of which may be None; no limit alone would refuse infinity and NaN."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return FiniteFloatType().convert(super().convert(value, param, ctx), param, ctx)  # type: ignore[arg-type]
