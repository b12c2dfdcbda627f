"""The files of ``anchorline cache warm`` and ``serve --warm``: requests, as clients sent them.

{…}                             one request
[{…}, {…}]                      several
{…}⏎{…}                         one a line
{"path": …, "body": {…}}⏎…      a trace, plain or delta-encoded
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from anchorline.api.decode import json_type
from anchorline.api.prefixes import anchor_body, path_of
from anchorline.bench.trace import TraceEntries
from anchorline.errors import ConfigError, RequestError
from anchorline.limits import Limits

FILE_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What one anchor is made of."""

    body: dict[str, Any]
    """As ``POST /cache/anchors`` takes it."""
    origin: str
    """The file and the place in it where it comes first."""
    name: str
    """The same, for people; without the folders, cut to what a pin's name may hold."""

    @property
    def anchor(self) -> dict[str, Any]:
        """The body with that name."""
        return {**self.body, "name": self.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    path: str
    body: dict[str, Any]
    origin: str


def read_prefixes(path: Path, *, limits: Limits, whole: bool = False) -> tuple[Prefix, ...]:
    """Each distinct head of the requests in a file, in their order; with ``whole`` all messages of each.

    Requests without tools and system prompt have no head and are passed over. Raises ConfigError naming file, line
    and field, and when nothing is left.
    """
    found: dict[bytes, Prefix] = {}
    for request in _requests(path):
        try:
            body = anchor_body(msgspec.json.encode(request.body), path=request.path, limits=limits, whole=whole)
        except RequestError as error:
            raise ConfigError(f"{request.origin}: {error}") from error
        if body is not None:
            name = request.origin.removeprefix(f"{path.parent}/")[: limits.pin_name]
            found.setdefault(msgspec.json.encode(body), Prefix(body=body, origin=request.origin, name=name))
    if not found:
        raise ConfigError(f"{path}: none of its requests has tools or a system prompt to warm")
    return tuple(found.values())


def _requests(path: Path) -> Iterator[_Request]:
    trace = TraceEntries()
    for origin, entry in _entries(path):
        if not isinstance(entry, dict):
            raise ConfigError(f"{origin}: a request must be an object, not {json_type(entry)}")
        if "path" not in entry and "tools_def" not in entry:
            yield _Request(path=path_of(entry), body=entry, origin=origin)
            continue
        try:
            recorded = trace.take(entry)
        except ValueError as error:
            raise ConfigError(f"{origin} is no trace entry: {error}") from error
        if recorded is not None:
            yield _Request(path=recorded.path, body=recorded.body, origin=origin)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, decoded) of each entry. Raises ConfigError."""
    data = _read(path)
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty")
    if len(lines) > 1 and _is_json(lines[0][1]):
        for number, line in lines:
            yield f"{path}, line {number}", _decoded(line, f"{path}, line {number}")
        return
    document = _decoded(data, str(path))
    if not isinstance(document, list):
        yield str(path), document
        return
    for number, entry in enumerate(document, 1):
        yield f"{path}, entry {number}", entry


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{path} is larger than {FILE_LIMIT_BYTES} bytes")
    return data


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _decoded(data: bytes, origin: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error
