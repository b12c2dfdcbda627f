"""Calls on their way into the trace file: in order of arrival, written behind the traffic."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from anchorline.record.anonymise import Anonymiser, Unrecordable
from anchorline.record.trace_file import TraceFile

logger = logging.getLogger("anchorline.record")

WAITING_CALLS = 64
"""Ended calls that wait for an earlier one to end; one more, and they no longer wait for it."""
UNWRITTEN_CALLS = 256
"""Calls that wait to be written; one more is left out."""

TRACE_PATHS = {
    path: f"/v1{path.removeprefix('/v1')}"
    for ending in ("/chat/completions", "/completions", "/messages", "/responses")
    for path in (ending, f"/v1{ending}")
}
"""Paths of the calls that generate, and how a trace names them."""

NO_OBJECT = "the body is no JSON object"
NOT_SERVED = "the upstream did not serve the call"
FILE_FULL = "the file is as large as --max-bytes"
FILE_FAILED = "the file could not be written"
BEHIND = "too many calls waited to be written"


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call under way. Times are seconds on the recorder's clock."""

    path: str
    body: bytes
    arrival_seconds: float
    end_seconds: float | None = None
    served: bool = False
    overtaken: bool = False
    """Later calls were written before it."""


class Recorder:
    """Writes each call once it and all calls before it have ended.

    ``begin``, ``end`` and ``close`` are for one thread. Wording is replaced and lines are written on another one, so
    that the traffic does not wait. ``anonymiser`` None keeps the text.
    """

    def __init__(self, file: TraceFile, *, anonymiser: Anonymiser | None, clock: Callable[[], float]) -> None:
        self._file = file
        self._anonymiser = anonymiser
        self._clock = clock
        self._started = clock() - file.start_seconds
        self._calls: deque[Call] = deque()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="anchorline-trace")
        self._lock = threading.Lock()
        self._unwritten = 0
        self.written = 0
        self.left_out: Counter[str] = Counter()
        """Calls that are not in the file, by reason. This and ``written`` are final after ``close``."""

    def begin(self, path: str, body: bytes) -> Call:
        """A call has arrived; ``path`` is one of TRACE_PATHS."""
        call = Call(path=TRACE_PATHS[path], body=body, arrival_seconds=self._now())
        self._calls.append(call)
        return call

    def end(self, call: Call, *, served: bool) -> None:
        """A call has ended, or its client has left. One that was not ``served`` is left out."""
        call.end_seconds, call.served = self._now(), served
        if call.overtaken:
            self._hand_over(call)
        while self._calls and (self._calls[0].end_seconds is not None or len(self._calls) > WAITING_CALLS):
            first = self._calls.popleft()
            if first.end_seconds is None:
                first.overtaken = True
            else:
                self._hand_over(first)

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown()

    def _now(self) -> float:
        return self._clock() - self._started

    def _hand_over(self, call: Call) -> None:
        with self._lock:
            if self._unwritten >= UNWRITTEN_CALLS:
                self.left_out[BEHIND] += 1
                return
            self._unwritten += 1
        self._writer.submit(self._write, call).add_done_callback(self._count)

    def _count(self, done: Future[str | None]) -> None:
        error = done.exception()
        if error is not None:
            logger.error("a call was not recorded", exc_info=error)
        reason = type(error).__name__ if error is not None else done.result()
        with self._lock:
            self._unwritten -= 1
            if reason is None:
                self.written += 1
            else:
                self.left_out[reason] += 1

    def _write(self, call: Call) -> str | None:
        """Why the call was left out; None when it is in the file."""
        if not call.served:
            return NOT_SERVED
        try:
            body = msgspec.json.decode(call.body)
            if not isinstance(body, dict):
                return NO_OBJECT
            line = self._line(call, body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return NO_OBJECT
        except Unrecordable as error:
            return str(error)
        try:
            return None if self._file.append(line) else FILE_FULL
        except OSError as error:
            logger.error("%s: %s", FILE_FAILED, error)
            return FILE_FAILED

    def _line(self, call: Call, body: dict[str, Any]) -> bytes:
        assert call.end_seconds is not None
        entry = {
            "t": round(call.arrival_seconds, 3),
            "t_end": round(call.end_seconds, 3),
            "path": call.path,
            "body": body if self._anonymiser is None else self._anonymiser.body(body),
        }
        return one_line(msgspec.json.encode(entry)) + b"\n"


def one_line(text: bytes) -> bytes:
    """JSON without the characters at which readers other than JSON's end a line."""
    for character in "\x85\u2028\u2029":
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return text
