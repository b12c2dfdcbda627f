"""Calls written as JSON: ``{"name": …, "arguments": {…}}``, or a list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anchorline.output.formats.json_text import JsonReader, as_json, unquote
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps

CALL_KEYS = frozenset({"name", "arguments", "parameters", "type", "function", "id"})
"""Keys of a call; where no marker says that a call follows, another key says that it is none."""
_ARGUMENTS = ("arguments", "parameters")


def json_value(source: Source, reader: JsonReader) -> Steps[None]:
    """Read one JSON value through ``reader``. Raises Broken."""
    while True:
        try:
            reader.feed(source.buffer, source.position)
        finally:
            source.position = reader.position
        if reader.done:
            return
        if not (yield from source.more()):
            reader.finish()
            return


def json_text(source: Source, start: str) -> Steps[str]:
    """Read one JSON value that begins with ``start``. Raises Broken."""
    found = yield from source.peek()
    if found != start:
        raise Broken(f"{found!r} instead of {start!r}" if found else f"it ends before {start!r}")
    parts: list[str] = []
    yield from json_value(source, JsonReader(parts.append))
    return "".join(parts)


def json_arguments(source: Source, sink: Sink, name: str) -> Steps[None]:
    """Make a call to ``name`` with the JSON object that follows. Raises Broken."""
    sink.known_tool(name)
    yield from source.skip_space()
    start = yield from source.peek()
    if start != "{":
        arguments = yield from _other_arguments(source)
        sink.start_call(name)
        sink.write(arguments)
    else:
        sink.start_call(name)
        yield from json_value(source, sink.arguments)
    sink.finish_call()


def bare_calls(source: Source, sink: Sink) -> Steps[None]:
    """The JSON that a forced call consists of. Raises Broken."""
    yield from json_calls(source, sink)


def json_calls(source: Source, sink: Sink, *, strict: bool = False) -> Steps[None]:
    """Make one call, or those of a list; ``strict`` accepts only the keys of a call. Raises Broken."""
    yield from source.skip_space()
    if (yield from source.accept("[")):
        yield from json_list(source, sink, strict=strict)
    else:
        yield from json_call(source, sink, strict=strict)


def json_list(source: Source, sink: Sink, *, strict: bool = False) -> Steps[None]:
    """Make the calls of a list, behind its opening bracket. Raises Broken, also when the list is empty."""
    before = sink.calls
    while True:
        yield from source.skip_space()
        if sink.calls > before:
            source.record()
        if (yield from source.accept("]")):
            break
        yield from json_call(source, sink, strict=strict)
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            yield from source.expect("]")
            break
    if sink.calls == before:
        raise Broken("an empty list of calls")


@dataclass(slots=True)
class _Call:
    """What is known of a call under way."""

    accepts: Callable[[str], bool]
    name: str | None = None
    id: str | None = None
    arguments: list[str] = field(default_factory=list)
    """Arguments that came before the name."""
    made: bool = False
    nested: bool = False
    """Name and arguments lie in an object of their own."""


def json_call(source: Source, sink: Sink, *, strict: bool) -> Steps[None]:
    """Make the call that one object describes. Raises Broken."""
    call = _Call(CALL_KEYS.__contains__ if strict else lambda _: True)
    yield from _members(source, sink, call)
    if not call.made:
        if call.name is None:
            raise Broken("it has no name")
        sink.start_call(call.name)
        sink.write("".join(call.arguments) or "{}")
        sink.finish_call()
    if call.id is not None:
        sink.last_call_is(call.id)


def _members(source: Source, sink: Sink, call: _Call) -> Steps[None]:
    yield from source.expect("{")
    while True:
        yield from source.skip_space()
        if (yield from source.accept("}")):
            return
        key = unquote((yield from json_text(source, '"')))
        if not call.accepts(key):
            raise Broken(f"{key[:100]!r} is no part of a call")
        yield from source.skip_space()
        yield from source.expect(":")
        yield from source.skip_space()
        yield from _member(source, sink, call, key)
        yield from source.skip_space()
        if not (yield from source.accept(",")):
            yield from source.expect("}")
            return


def _member(source: Source, sink: Sink, call: _Call, key: str) -> Steps[None]:
    start = yield from source.peek()
    if key == "name" and call.name is None:
        call.name = unquote((yield from json_text(source, '"')))
        sink.known_tool(call.name)
    elif key in _ARGUMENTS and not call.made and not call.arguments:
        if call.name is not None:
            yield from json_arguments(source, sink, call.name)
            call.made = True
        elif start == "{":
            yield from json_value(source, JsonReader(call.arguments.append))
        else:
            call.arguments.append((yield from _other_arguments(source)))
    elif key == "id" and start == '"':
        call.id = unquote((yield from json_text(source, '"')))
    elif key == "function" and start == "{" and not call.nested:
        call.nested = True
        yield from _members(source, sink, call)
    else:
        yield from json_value(source, JsonReader(lambda _: None))


def _other_arguments(source: Source) -> Steps[str]:
    """Arguments that are no object: none at all, or a string that holds one. Raises Broken."""
    start = yield from source.peek()
    if start == "n":
        yield from source.expect("null")
        return "{}"
    if start != '"':
        raise Broken("the arguments are no JSON object")
    text = as_json(unquote((yield from json_text(source, '"'))))
    if text is None or not text.lstrip().startswith("{"):
        raise Broken("the arguments are a string that is no JSON object")
    return text
