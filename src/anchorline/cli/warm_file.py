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
from anchorline.bench.live.protocols import head_alone, why_left_out
from anchorline.bench.trace import TraceEntries
from anchorline.cli.traces import told_left_out
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
    recorded: bool
    """Whether it is the call of a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmFile:
    """What a file asks for."""

    prefixes: tuple[Prefix, ...]
    left_out: tuple[str, ...]
    """Lines for people about the calls of a trace that cannot be used here."""


def read_prefixes(path: Path, *, limits: Limits, whole: bool = False) -> WarmFile:
    """Each distinct head of the requests in a file, in their order; with ``whole`` all messages of each.

    Requests without tools and system prompt have no head and are passed over. Of a recorded call that goes on from what
    its server kept the head are its instructions and tools. Calls of a trace that cannot be used
    are left out: they are as an agent sent them to some server. Of other files they are errors. Raises ConfigError
    naming file, line and field, and when nothing is left.
    """
    found: dict[bytes, Prefix] = {}
    reasons: dict[str, str] = {}
    requests = list(_requests(path))
    for request in requests:
        try:
            body = _anchor_body(request, limits=limits, whole=whole)
        except RequestError as error:
            if not request.recorded:
                raise ConfigError(f"{request.origin}: {error}") from error
            reasons[request.origin.removeprefix(f"{path}, ")] = str(error)
            continue
        if body is not None:
            name = request.origin.removeprefix(f"{path.parent}/")[: limits.pin_name]
            found.setdefault(msgspec.json.encode(body), Prefix(body=body, origin=request.origin, name=name))
    left_out = told_left_out(path.name, reasons, calls=len(requests))
    if not found:
        nothing = f"{path}: none of its requests has tools or a system prompt to warm"
        raise ConfigError("; ".join([nothing, *left_out]))
    return WarmFile(prefixes=tuple(found.values()), left_out=tuple(left_out))


def _anchor_body(request: _Request, *, limits: Limits, whole: bool) -> dict[str, Any] | None:
    """Raises RequestError saying why the request cannot be used."""
    body: dict[str, Any] | None = request.body
    reason = why_left_out(request.path, request.body) if request.recorded else None
    if reason is not None:
        body = None if whole else head_alone(request.path, request.body)
        if body is None:
            raise RequestError(reason)
    return anchor_body(msgspec.json.encode(body), path=request.path, limits=limits, whole=whole)


def _requests(path: Path) -> Iterator[_Request]:
    trace = TraceEntries()
    for origin, entry in _entries(path):
        if not isinstance(entry, dict):
            raise ConfigError(f"{origin}: a request must be an object, not {json_type(entry)}")
        if "path" not in entry and "tools_def" not in entry:
            yield _Request(path=path_of(entry), body=entry, origin=origin, recorded=False)
            continue
        try:
            recorded = trace.take(entry)
        except ValueError as error:
            raise ConfigError(f"{origin} is no trace entry: {error}") from error
        if recorded is not None:
            yield _Request(path=recorded.path, body=recorded.body, origin=origin, recorded=True)


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
