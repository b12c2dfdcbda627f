"""Traces of agents: one JSON object per line, plain or delta-encoded.

plain   {"t": arrival seconds, "t_end": seconds, "path": "/v1/…", "body": {…request…}}
delta   {"tools_def": n, "tools": […]}, or a request without messages and tools in its body but with
        "tools_ref": n, and "base", "keep", "add": messages = messages(request base)[:keep] + add
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from anchorline.bench.foreign_json import check_levels, decoded
from anchorline.errors import ConfigError

CHAT_PATH = "/v1/chat/completions"
SECOND_SESSION_REQUESTS = 12
LATEST_SECONDS = 2.0**43
"""Beyond it a float no longer tells milliseconds apart."""
SHOWN_CHARACTERS = 100
_PATH = re.compile(r"/(?!/)[!\"$-\[\]-~]*")
"""ASCII, but no host in front, fragment, backslash or white space: clients and servers read those in many ways."""
_DOT_SEGMENT = re.compile(r"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One recorded call; ``body`` is the request as it was sent."""

    path: str
    body: dict[str, Any]
    arrival_seconds: float
    end_seconds: float
    """Infinite where the end was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    requests: tuple[TraceRequest, ...]


class TraceEntries:
    """The entries of one trace, taken in their order."""

    def __init__(self) -> None:
        self.requests: list[TraceRequest] = []
        self._tools: dict[int, Any] = {}

    def take(self, entry: Any) -> TraceRequest | None:
        """The request that a decoded entry is, None for a definition of tools. Raises ValueError when it is neither."""
        try:
            _check_can_be_sent(entry)
            if "tools_def" in entry:
                self._tools[entry["tools_def"]] = entry["tools"]
                return None
            request = _request(entry, self.requests, self._tools)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from error
        self.requests.append(request)
        return request


def read_trace(path: Path) -> Trace:
    """Read a trace file of either encoding; raises ConfigError naming the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    entries = TraceEntries()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entries.take(decoded(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}, is no trace entry: {error}") from error
    return Trace(name=path.name.removesuffix(".jsonl").removesuffix(".delta"), requests=tuple(entries.requests))


def chat_only(trace: Trace) -> Trace:
    """The calls of ``trace`` to the chat endpoint."""
    return Trace(name=trace.name, requests=tuple(r for r in trace.requests if r.path == CHAT_PATH))


def limited(trace: Trace, calls: int | None) -> Trace:
    """The first so many calls of ``trace``; None means all."""
    return Trace(name=trace.name, requests=trace.requests[:calls])


def ended_before(requests: Sequence[TraceRequest], index: int) -> Iterator[int]:
    """Indices of the earlier calls whose reply had ended when call ``index`` was sent."""
    arrival = requests[index].arrival_seconds
    return (earlier for earlier in range(index) if requests[earlier].end_seconds <= arrival)


def mix(traces: Sequence[Trace]) -> Trace:
    """What a machine shared by several agents sees: the traces round-robin, one call of each in turn.

    The first trace brings a second session: its first calls again with other user texts, so that two
    conversations share one head. It takes the third turn of each round.
    """
    return Trace(name="mix", requests=tuple(round_robin([trace.requests for trace in mix_members(traces)])))


def mix_members(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of a mix, the second session among them."""
    if not traces:
        raise ConfigError("a mix needs at least one trace")
    members = list(traces)
    members.insert(2, second_session(traces[0]))
    return members


def second_session(trace: Trace) -> Trace:
    """The first calls of ``trace`` with every user text reversed: the same head, another conversation."""
    requests = []
    for request in trace.requests[:SECOND_SESSION_REQUESTS]:
        body = copy.deepcopy(request.body)
        for message in body.get("messages", ()):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                message["content"] = "Second session. " + message["content"][::-1]
        requests.append(
            TraceRequest(
                path=request.path,
                body=body,
                arrival_seconds=request.arrival_seconds,
                end_seconds=request.end_seconds,
            )
        )
    return Trace(name=f"{trace.name}-second", requests=tuple(requests))


def _request(entry: dict[str, Any], earlier: Sequence[TraceRequest], tools: dict[int, Any]) -> TraceRequest:
    body = dict(entry["body"])
    if "add" in entry:
        base = entry["base"]
        kept = [] if base is None else earlier[base].body["messages"][: entry["keep"]]
        body["messages"] = kept + entry["add"]
        if entry.get("tools_ref") is not None:
            body["tools"] = tools[entry["tools_ref"]]
    path, arrival_seconds, end_seconds = entry["path"], float(entry["t"]), float(entry["t_end"])
    _check_path(path)
    if not (abs(arrival_seconds) <= LATEST_SECONDS and abs(end_seconds) <= LATEST_SECONDS):
        raise ValueError(f"t and t_end must be finite and no more than {LATEST_SECONDS:.0f} seconds")
    return TraceRequest(path=path, body=body, arrival_seconds=arrival_seconds, end_seconds=end_seconds)


def _check_path(path: Any) -> None:
    """Raise for what is not the path of one call on the server that calls are sent to, as it stands."""
    if not isinstance(path, str):
        raise TypeError("path is no text")
    if _PATH.fullmatch(path) is None or has_dot_segment(path.partition("?")[0]):
        raise ValueError(f"path {path[:SHOWN_CHARACTERS]!a} is not one of a server, like {CHAT_PATH}")


def has_dot_segment(path: str) -> bool:
    """Whether clients and servers may take ``path`` to be another one, as ``/a/../b`` is ``/b``."""
    return _DOT_SEGMENT.search(path) is not None


def _check_can_be_sent(entry: Any) -> None:
    """Raises ValueError for what no call could hold: too many levels, lone surrogates, numbers that are not finite."""
    check_levels(entry)
    json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()


def round_robin(queues: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """One item of each queue in turn, until all are empty."""
    running = [iter(queue) for queue in queues]
    while running:
        still_running = []
        for queue in running:
            for item in queue:
                still_running.append(queue)
                yield item
                break
        running = still_running
