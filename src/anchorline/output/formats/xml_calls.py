"""Calls written as XML-like elements: Qwen3-Coder's, MiniMax', DeepSeek V3.2's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from anchorline.output.formats.machine import Read
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.formats.tagged_values import TaggedArguments
from anchorline.output.formats.values import UNSAID, WRITTEN_JSON
from anchorline.output.markers import Markers

_HEAD = re.compile(r"[^>\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlStyle:
    """How one family writes its elements; names stand between an opening and ``>``, quoted or not."""

    call: str
    call_end: str
    value: str
    value_end: str
    padded: bool = False
    """Values stand on lines of their own."""

    def read(self, source: Source, sink: Sink) -> Steps[None]:
        """Read a call behind the opening of its element. Raises Broken."""
        name, _ = yield from _head(source)
        arguments = TaggedArguments(source, sink, name)
        value_end = Markers((self.value_end,))
        while True:
            yield from source.skip_space()
            marker = yield from source.accept_any((self.value, self.call_end))
            if marker is None:
                raise Broken(f"neither {self.value!r} nor {self.call_end!r} follows")
            if marker == self.call_end:
                arguments.finish()
                return
            parameter, rest = yield from _head(source)
            unsaid = WRITTEN_JSON if 'string="false"' in rest else UNSAID
            yield from arguments.value(parameter, value_end, padded=self.padded, unsaid=unsaid)


def section(call: str, read: Read, end: str) -> Read:
    """A reader of one or more calls between markers, behind the opening one.

    ``call`` is what each begins with, read by ``read``.
    """

    def read_section(source: Source, sink: Sink) -> Steps[None]:
        yield from source.skip_space()
        yield from source.expect(call)
        marker: str | None = call
        while marker == call:
            yield from read(source, sink)
            yield from source.skip_space()
            source.record()
            marker = yield from source.accept_any((call, end))

    return read_section


def _head(source: Source) -> Steps[tuple[str, str]]:
    """The name in an opening tag, and what stands behind it. Raises Broken."""
    head = yield from source.word(_HEAD)
    yield from source.expect(">")
    name, _, rest = head.strip().removeprefix('"').partition('"')
    return name, rest
