"""Finding the part of a JSON schema that keeps it from being compiled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

Path = tuple[str | int, ...]
ErrorOf = Callable[[Any], str | None]
"""What is wrong with a schema, or None when it compiles."""

PROBES = 100
"""Most schemas that are compiled to find one fault; then the part that was reached is named."""
PROBED_BYTES = 1 << 19
"""Most bytes of them: compiling a large schema takes a second."""

_ONE = ("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "propertyNames", "contains")
_LISTS = ("prefixItems", "allOf", "anyOf", "oneOf")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords that hold a schema, a list of them, a map of them. Definitions come last: they matter only where used."""

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}")
_KEY_CHARACTERS = 40


class _OutOfProbes(Exception):
    """The fault is not looked for any closer."""


def locate(schema: Any, error_of: ErrorOf) -> tuple[Path, str]:
    """The path of the first part at fault in a ``schema`` that does not compile, and what is wrong with it.

    A part is at fault when the schema compiles with that part made neutral, together with all parts
    behind it. Behind a reference the fault is looked for where the reference leads.
    """
    search = _Search(error_of)
    error = error_of(schema) or ""
    path = search.descend(schema, lambda part: part)
    if path and path[-1] == "$ref":
        path = search.follow(schema, path)
    return path, search.error or error


def show(path: Path) -> str:
    """``.properties.x.items[2]``: a path to be put behind the name of a field."""
    return "".join([_show_step(step) for step in path])


def _show_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.fullmatch(step):
        return f".{step}"
    return f"[{json.dumps(step[:_KEY_CHARACTERS], ensure_ascii=True)}]"


class _Search:
    """One search; counts what it compiles."""

    def __init__(self, error_of: ErrorOf) -> None:
        self._error_of = error_of
        self._probes = 0
        self._probed_bytes = 0
        self.error: str | None = None
        """The last complaint about the part that the search has reached."""

    def _compiles(self, schema: Any) -> bool:
        self._probes += 1
        self._probed_bytes += len(json.dumps(schema))
        if self._probes > PROBES or self._probed_bytes > PROBED_BYTES:
            raise _OutOfProbes
        error = self._error_of(schema)
        if error is not None:
            self.error = error
        return error is None

    def descend(self, part: Any, place: Callable[[Any], Any]) -> Path:
        """The path within ``part`` of what is at fault; ``place`` puts a part back into the whole schema."""
        path: Path = ()
        try:
            while isinstance(part, dict):
                inner = self._inner(part, place)
                if inner is None:
                    path += self._own(part, place)
                    break
                step, whole = inner
                path += step
                part, place = _get(part, step), _placing(whole, step, place)
        except _OutOfProbes:
            pass
        self.error = self._error_of(place(part)) or self.error
        return path

    def follow(self, schema: Any, path: Path) -> Path:
        """Where the reference at the end of ``path`` leads, if the fault lies there; ``path`` otherwise."""
        seen = {path}
        while path and path[-1] == "$ref":
            target = _pointer(_get(schema, path))
            if target is None or target in seen or not _exists(schema, target):
                break
            seen.add(target)
            place = _placing(schema, target, lambda part: part)
            try:
                if not self._compiles(place({})):
                    break
            except _OutOfProbes:
                break
            path = target + self.descend(_get(schema, target), place)
        return path

    def _inner(self, part: dict[str, Any], place: Callable[[Any], Any]) -> tuple[Path, dict[str, Any]] | None:
        """The first schema inside ``part`` that is at fault, and ``part`` with those behind it neutral; or None."""
        steps = _children(part)
        first = self._first(len(steps), lambda kept: place(_neutral(part, steps[kept:])))
        return None if first is None else (steps[first], _neutral(part, steps[first + 1 :]))

    def _own(self, part: dict[str, Any], place: Callable[[Any], Any]) -> Path:
        """The first keyword of ``part`` that is at fault though all schemas inside are neutral; or nothing."""
        bare = _neutral(part, _children(part))
        keys = sorted(bare, key=lambda key: key != "type")  # others may be at fault for this type alone
        first = self._first(len(keys), lambda kept: place({key: bare[key] for key in keys[:kept]}))
        return () if first is None else (keys[first],)

    def _first(self, count: int, keeping: Callable[[int], Any]) -> int | None:
        """The first of ``count`` parts that must not be kept; ``keeping`` makes a schema with that many of them."""
        if not count or not self._compiles(keeping(0)):
            return None
        good, bad = 0, count
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._compiles(keeping(middle)):
                good = middle
            else:
                bad = middle
        return good


def _children(part: dict[str, Any]) -> list[Path]:
    """Where the schemas inside ``part`` are."""
    found: list[Path] = []
    definitions: list[Path] = []
    for key, value in part.items():
        if key in _ONE:
            found.append((key,))
        elif key in _LISTS and isinstance(value, list):
            found.extend((key, index) for index in range(len(value)))
        elif key in _MAPS and isinstance(value, dict):
            into = definitions if key in ("$defs", "definitions") else found
            into.extend((key, name) for name in value)
    return found + definitions


def _neutral(part: dict[str, Any], steps: Sequence[Path]) -> dict[str, Any]:
    """``part`` with the schemas at ``steps`` accepting everything."""
    changed: Any = {key: value.copy() if isinstance(value, dict | list) else value for key, value in part.items()}
    for key, *inner in steps:
        if inner:
            changed[key][inner[0]] = {}
        else:
            changed[key] = {}
    return dict(changed)


def _placing(whole: Any, path: Path, place: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Puts a part at ``path`` into ``whole``, and that into what ``place`` knows."""

    def put(part: Any) -> Any:
        return place(_replaced(whole, path, part))

    return put


def _replaced(whole: Any, path: Path, part: Any) -> Any:
    if not path:
        return part
    copy: Any = whole.copy()
    copy[path[0]] = _replaced(whole[path[0]], path[1:], part)
    return copy


def _get(schema: Any, path: Path) -> Any:
    for step in path:
        schema = schema[step]
    return schema


def _exists(schema: Any, path: Path) -> bool:
    try:
        _get(schema, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _pointer(reference: Any) -> Path | None:
    """The path that a reference within the same schema means (``#/$defs/a``), or None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    steps = [step.replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/")]
    return tuple(int(step) if step.isascii() and step.isdigit() else step for step in steps)
