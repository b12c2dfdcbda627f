"""Calls as lines of a trace file, with their wording replaced or as it was."""

from __future__ import annotations

import logging

import msgspec

from anchorline.record.anonymise import Anonymiser, Unrecordable
from anchorline.record.recorder import NO_OBJECT, RecordedCall
from anchorline.record.trace_file import TraceFile

logger = logging.getLogger("anchorline.record")

FILE_FULL = "the file is as large as --max-bytes"
FILE_FAILED = "the file could not be written"


class TraceWriter:
    """What a ``Recorder`` gives its calls to; ``anonymiser`` None keeps the text."""

    def __init__(self, file: TraceFile, *, anonymiser: Anonymiser | None) -> None:
        self._file = file
        self._anonymiser = anonymiser

    def take(self, call: RecordedCall) -> str | None:
        """Write a line. Gives the reason when there is none in the file."""
        try:
            line = self._line(call)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return NO_OBJECT
        except Unrecordable as error:
            return str(error)
        try:
            return None if self._file.append(line) else FILE_FULL
        except OSError as error:
            logger.error("%s: %s", FILE_FAILED, error)
            return FILE_FAILED

    def _line(self, call: RecordedCall) -> bytes:
        entry = {
            "t": round(call.arrival_seconds, 3),
            "t_end": round(call.end_seconds, 3),
            "path": call.path,
            "body": call.body if self._anonymiser is None else self._anonymiser.body(call.body),
        }
        return one_line(msgspec.json.encode(entry)) + b"\n"


def one_line(text: bytes) -> bytes:
    """JSON without the characters at which readers other than JSON's end a line."""
    for character in "\x85\u2028\u2029":
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return text
