"""Arguments written one by one between tags, as XML-like formats do."""

from __future__ import annotations

from collections.abc import Callable

from anchorline.output.formats.json_text import quote, quote_part
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.formats.values import Kinds, kinds_of, typed_json
from anchorline.output.markers import Markers


class _Unpadded:
    """Leaves out one line break at the beginning of a text and one at its end."""

    __slots__ = ("_held", "_sink", "_started")

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._sink = sink
        self._started = False
        self._held = ""

    def feed(self, text: str) -> None:
        if not self._started:
            self._started = True
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = text[-1:] if text.endswith("\n") else ""
        if body := text.removesuffix("\n"):
            self._sink(body)


class TaggedArguments:
    """Makes a call with values in tags."""

    def __init__(self, source: Source, sink: Sink, name: str) -> None:
        """Raises Broken when there is no such tool."""
        sink.known_tool(name)
        self._source = source
        self._sink = sink
        self._name = name
        self._schema = sink.context.tools[name]
        self._empty = True

    def value(self, parameter: str, close: Markers, *, padded: bool, unsaid: Kinds) -> Steps[None]:
        """Read the value of ``parameter`` up to ``close``; the text of a string is passed on as it comes.

        ``padded``: a line break on either side of the value is not part of it. ``unsaid`` are the
        kinds to assume where the schema names none. Raises Broken at the end of the text.
        """
        kinds = kinds_of(self._schema, parameter) or unsaid
        self._begin()
        self._sink.write(quote(parameter) + ": ")
        if not kinds or kinds == {"string"}:
            self._sink.write('"')
            yield from self._pour(lambda text: self._sink.write(quote_part(text)), close, padded)
            self._sink.write('"')
            return
        parts: list[str] = []
        yield from self._pour(parts.append, close, padded)
        self._sink.write(typed_json("".join(parts), kinds))

    def finish(self) -> None:
        """All values are there."""
        if self._empty:
            self._begin()
        self._sink.write("}")
        self._sink.finish_call()

    def _begin(self) -> None:
        """Announce the call, or part one value from the next."""
        if self._empty:
            self._sink.start_call(self._name)
        self._sink.write("{" if self._empty else ", ")
        self._empty = False

    def _pour(self, sink: Callable[[str], None], close: Markers, padded: bool) -> Steps[None]:
        target = _Unpadded(sink).feed if padded else sink
        if (yield from self._source.pour(close, target)) is None:
            raise Broken("it ends inside a value")
