"""Calls written as Python: ``[get_weather(city="Paris"), now()]``."""

from __future__ import annotations

import re

from anchorline.output.formats.json_calls import json_list
from anchorline.output.formats.literals import PYTHON, LiteralArguments, LiteralStyle
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps

NAME = re.compile(r"[\w.\-/]*")


def call_arguments(
    source: Source, sink: Sink, name: str, *, close: str = ")", style: LiteralStyle = PYTHON
) -> Steps[None]:
    """Make a call to ``name`` with the arguments up to ``close``, behind the opening bracket. Raises Broken."""
    return LiteralArguments(source, sink, style).read(name, close)


def pythonic_call(source: Source, sink: Sink) -> Steps[None]:
    """Make the call that follows. Raises Broken."""
    name = yield from source.word(NAME)
    yield from source.skip_space()
    yield from source.expect("(")
    yield from call_arguments(source, sink, name)


def listed_calls(source: Source, sink: Sink) -> Steps[None]:
    """Make the calls of a list in square brackets, written as Python or as JSON. Raises Broken."""
    yield from source.skip_space()
    yield from source.expect("[")
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        yield from json_list(source, sink)
        return
    before = sink.calls
    while not (yield from source.accept("]")):
        yield from pythonic_call(source, sink)
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            yield from source.expect("]")
            break
        source.record()
        yield from source.skip_space()
    if sink.calls == before:
        raise Broken("an empty list of calls")
