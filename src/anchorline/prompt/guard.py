"""Text from a request never becomes a control token.

Templates join the request's strings with control-token texts, and the joined text is searched for
control tokens. So that only those the template itself wrote are found, every string of the request
is *guarded* first: a guard, one character that occurs nowhere in the request, is put into whatever
could be taken for a control token. Once control tokens are found the guards are removed again.

Guarded are, in message texts, names, ids, arguments, tool schemas (keys too) and template options:

* a control token's text, anywhere in a string:                    ``<|im_end|>``  →  ``<·|im_end|>``
* the beginning of one at the end of a string, and the end of one at its start, so that neighbours
  cannot complete it:                                             ``…<|im_``  →  ``…<·|im_``
* where the template writes the beginning of a control token by itself (``'<|' + role + '|>'``), a
  string that lies inside of one:                                   ``user``  →  ``u·ser``
  But keys that the template mentions stay whole, as it could not find them otherwise.

The ends of a string are also looked at without the white space around it (templates trim), and at
every marker by which the template may take strings apart (``split('</think>')``).

Guaranteed: a template that inserts strings whole, trimmed, as JSON, or split at a constant yields a
control token only where it wrote the token's text itself, or built it around a role (roles come from
a fixed set), or around a key or a JSON schema type that it mentions by itself. Not covered: a
template that cuts strings at computed places or rewrites their letters (``lower``, ``replace`` of
single characters) could still build one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from anchorline.errors import RequestError
from anchorline.prompt.control import ControlTexts
from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.messages import parse_arguments
from anchorline.prompt.template import ChatTemplate, GivenList, JsonTexts

GUARDS = ("\xb8", "\xa8", "\xaf", *map(chr, range(0xA000, 0xA48D)), *map(chr, range(0xE000, 0xF900)))
"""Characters to choose a guard from: no white space, no letters with case, and first of all printable
ones, since templates may write a list as Python does, which escapes the others. The first three
(lone accents) keep texts one byte per character. Any will do that the request does not contain.
"""

NESTING_LIMIT = 100
"""Deepest nesting of tools, arguments and template options."""

SCHEMA_TYPES = frozenset({"function", "object", "array", "string", "number", "integer", "boolean", "null"})
"""Values that templates compare with; where one does, they are not broken for lying inside a control token's text."""

_ATTRIBUTE = re.compile(r"[\w)\]]\s*\.\s*([^\W\d]\w*)")
_FORMAT_FIELD = re.compile(r"%(?:\(\w*\))?[a-z]|\{[^{}]*\}")


class _HoldsGuard(Exception):
    """A string of the request contains the guard that was tried."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A request's template input after guarding. ``guard`` is the character that was used."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    kwargs: dict[str, Any]
    guard: str
    json_texts: JsonTexts


class Guard:
    """Guards requests for one template and one vocabulary. Thread-safe.

    With ``text_arguments`` the arguments of tool calls stay JSON text, else they become objects.
    """

    def __init__(
        self,
        control: ControlTexts,
        template: ChatTemplate,
        *,
        text_arguments: bool = False,
        memo_bytes: int = 32 << 20,
    ) -> None:
        self.text_arguments = text_arguments
        self._control = control
        taken = template.source + "".join(control.ids)
        self._guards = tuple(guard for guard in GUARDS if guard not in taken)
        markers = sorted(template.markers, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None
        self._open = _open_controls(control, template.literals)
        self.mentioned = _mentioned(template)
        """Words that the template may look for among keys and values."""
        self._strings: ByteMemo[tuple[str, str, str, bool], str] = ByteMemo(memo_bytes)
        self._values: ByteMemo[tuple[str, str, bytes], tuple[Any, JsonTexts]] = ByteMemo(memo_bytes)

    def guard(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        tools_json: bytes,
        kwargs: Mapping[str, Any],
        tenant: str = "",
    ) -> Guarded:
        """Guarded copies of normalised messages (``prompt.messages``), tools and template options.

        What was guarded before for ``tenant`` is taken from a memo; what other tenants sent takes as long as new.
        ``tools_json`` identifies the tools. The result must not be changed: parts of it are shared.
        Raises RequestError when something is nested too deep or is not valid Unicode.
        """
        for guard in self._guards:
            try:
                return _Pass(self, guard, tenant).run(messages, tools, tools_json, kwargs)
            except _HoldsGuard:
                continue
        raise RequestError("the request contains every character that could serve as a guard", field="messages")

    def string(self, text: str, guard: str, tenant: str, *, whole: bool = True) -> str:
        """``text`` guarded; without ``whole`` it may lie inside a control token's text as it is."""
        key = (tenant, guard, text, whole)
        known = self._strings.get(key)
        if known is None:
            if guard in text:
                raise _HoldsGuard
            known = self._guard_string(text, guard, whole)
            self._strings.put(key, known, 4 * len(text))
        return known

    def value(self, key: bytes, guard: str, tenant: str, build: Callable[[], Any]) -> tuple[Any, JsonTexts]:
        """The guarded form of a JSON value that comes again and again, made once by ``build``."""
        known = self._values.get((tenant, guard, key))
        if known is None:
            value = build()
            known = (value, {id(part): (part, {}) for part in _rendered_parts(value)})
            # Objects cost several times their JSON text, and their texts are kept too.
            self._values.put((tenant, guard, key), known, 10 * len(key))
        return known

    def _guard_string(self, text: str, guard: str, whole: bool) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RequestError("a string is not valid Unicode (a lone surrogate)", field="messages") from error
        places = set(self._inner_places(text))
        for start, end in self._pieces(text):
            places.update(self._end_places(text, start, end, whole))
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return guard.join(text[a:b] for a, b in pairwise(cuts))

    def _inner_places(self, text: str) -> Iterator[int]:
        """Behind the first character of every control-token text, overlapping ones too."""
        position = 0
        while (match := self._control.pattern.search(text, position)) is not None:
            position = match.start() + 1
            yield position

    def _pieces(self, text: str) -> Iterator[tuple[int, int]]:
        """Spans between markers."""
        start = 0
        for match in self._markers.finditer(text) if self._markers is not None else ():
            yield start, match.start()
            start = match.end()
        yield start, len(text)

    def _end_places(self, text: str, start: int, end: int, whole: bool) -> Iterator[int]:
        """Places for guards at the two ends of text[start:end], with and without white space there."""
        limit = self._control.longest
        piece = text[start:end]
        trimmed_end = start + len(piece.rstrip())
        trimmed_start = end - len(piece.lstrip())
        for stop in {end, trimmed_end}:
            for length in range(1, min(limit, stop - start + 1)):
                if text[stop - length : stop] in self._control.beginnings:
                    yield stop - length + 1
        for first in {start, trimmed_start}:
            if any(text[first : first + n] in self._control.endings for n in range(1, min(limit, end - first + 1))):
                yield first
        if whole and trimmed_end > trimmed_start and trimmed_end - trimmed_start < limit:
            inner = text[trimmed_start:trimmed_end]
            if any(inner in control for control in self._open):
                yield trimmed_start + 1


class _Pass:
    """One attempt to guard a request with one guard."""

    def __init__(self, owner: Guard, guard: str, tenant: str) -> None:
        self._owner = owner
        self._guard = guard
        self._tenant = tenant
        self._json_texts: JsonTexts = {}

    def run(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        tools_json: bytes,
        kwargs: Mapping[str, Any],
    ) -> Guarded:
        guarded_tools = None
        if tools is not None:
            guarded_tools = self._value(b"tools" + tools_json, lambda: self._walk(tools, field="tools"))
        return Guarded(
            messages=[self._message(message) for message in messages],
            tools=guarded_tools,
            kwargs={key: self._walk(value, field="chat_template_kwargs") for key, value in kwargs.items()},
            guard=self._guard,
            json_texts=self._json_texts,
        )

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        guarded: dict[str, Any] = {}
        for key, value in message.items():
            if key == "role":
                guarded[key] = value
            elif key == "tool_calls":
                guarded[key] = GivenList(self._tool_call(call) for call in value)
            else:
                guarded[key] = self._string(value)
        return guarded

    def _tool_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if self._owner.text_arguments:
            guarded: Any = self._string(arguments)
        else:
            guarded = self._value(
                b"arguments" + arguments.encode("utf-8", "surrogatepass"),
                lambda: self._walk(parse_arguments(arguments), field="messages"),
            )
        return {
            **{key: self._string(call[key]) for key in ("id",) if key in call},
            "type": "function",
            "function": {"name": self._string(function["name"]), "arguments": guarded},
        }

    def _value(self, key: bytes, build: Callable[[], Any]) -> Any:
        value, json_texts = self._owner.value(key, self._guard, self._tenant, build)
        self._json_texts.update(json_texts)
        return value

    def _string(self, text: str) -> str:
        return self._owner.string(text, self._guard, self._tenant)

    def _walk(self, value: Any, *, field: str, depth: int = 0) -> Any:
        if depth > NESTING_LIMIT:
            raise RequestError(f"{field} is nested deeper than {NESTING_LIMIT} levels", field=field)
        if isinstance(value, str):
            looked_for = value in SCHEMA_TYPES and value in self._owner.mentioned
            return self._owner.string(value, self._guard, self._tenant, whole=not looked_for)
        if isinstance(value, Mapping):
            return {
                self._owner.string(key, self._guard, self._tenant, whole=key not in self._owner.mentioned): self._walk(
                    item, field=field, depth=depth + 1
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return GivenList(self._walk(item, field=field, depth=depth + 1) for item in value)
        return value


def _rendered_parts(value: Any) -> Iterator[Any]:
    """The parts of tools or arguments that templates write as JSON."""
    yield value
    for tool in value if isinstance(value, list) else ():
        yield tool
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict):
            yield function
            if isinstance(function.get("parameters"), dict):
                yield function["parameters"]


def _mentioned(template: ChatTemplate) -> frozenset[str]:
    """Strings of the template, also the parts of dotted paths, and the names behind a dot."""
    parts = {part for literal in template.literals for part in literal.split(".")}
    return frozenset({*template.literals, *parts, *_ATTRIBUTE.findall(template.source)})


def _open_controls(control: ControlTexts, literals: Sequence[str]) -> tuple[str, ...]:
    """Control-token texts whose beginning the template writes at the end of one of its strings."""
    ends = [piece for literal in literals for piece in _FORMAT_FIELD.split(literal) if piece]
    return tuple(
        text
        for text in control.ids
        if any(end.endswith(text[:length]) for end in ends for length in range(1, len(text)))
    )
