"""What a reader has found of one choice, as events."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from anchorline.output.format import ReplyContext
from anchorline.output.formats.json_text import JsonReader
from anchorline.output.formats.source import SPACE, Broken, Source

logger = logging.getLogger("anchorline.output")

LOG_LIMIT = 5
"""Most lines that one choice may write into the log."""

_Make = Callable[[str, tuple[TokenText, ...]], ReplyEvent]


class TrimmedText:
    """Text in parts; white space at the end of a part is passed on only once more text of that part follows."""

    __slots__ = ("_drop_leading", "_emit", "_held", "fresh")

    def __init__(self, emit: Callable[[str, int], None], *, drop_leading: bool) -> None:
        self._emit = emit
        """Takes text, and how many characters are held back behind it."""
        self._drop_leading = drop_leading
        self._held: list[str] = []
        self.fresh = True
        """Nothing but white space has come in this part."""

    def feed(self, text: str) -> None:
        body = text.rstrip(SPACE)
        trailing = text[len(body) :]
        if body:
            if self.fresh and self._drop_leading:
                self._held.clear()
                body = body.lstrip(SPACE)
            self._emit("".join((*self._held, body)), len(trailing))
            self._held.clear()
            self.fresh = False
        if trailing:
            self._held.append(trailing)

    def cut(self) -> None:
        """Something else comes here: the white space around it is dropped, and a new part begins."""
        self._held.clear()
        self.fresh = self._drop_leading = True

    def end(self) -> None:
        """No more text: the white space at the end is text, unless all of the part is to be dropped."""
        if self._held and not (self.fresh and self._drop_leading):
            self._emit("".join(self._held), 0)
        self._held.clear()


class Sink:
    """Takes text, reasoning and calls of one choice in their order, and makes events of them.

    Rules for calls:

    * A call is announced once its name is known to be a tool's and its arguments begin. Whatever
      is wrong before that (``broken``) makes all of it text again.
    * Arguments are streamed, so a call that breaks later cannot be taken back: its arguments are
      completed by the shortest text that makes them a JSON object, and it counts as made.
    * A call that ends because the reply was cut (LENGTH) stays as it is: neither completed nor counted.

    A reply that the model itself ended is never empty: one of nothing but marks is shown as it is.
    """

    def __init__(self, choice: int, source: Source, context: ReplyContext) -> None:
        self.content = TrimmedText(self._content, drop_leading=False)
        self.reasoning = TrimmedText(self._reasoning, drop_leading=True)
        self.context = context
        self.calls = 0
        """Complete calls."""
        self.cut_short = False
        """The reply was cut by LENGTH."""
        self._choice = choice
        self._source = source
        self._arguments: JsonReader | None = None
        """Of the call under way."""
        self._events: list[ReplyEvent] = []
        self._tokens: deque[tuple[int, tuple[TokenText, ...]]] = deque()
        """(offset in the source where their text ends, tokens), not reported yet."""
        self._delta: tuple[str, _Make] | None = None
        """Kind and maker of the event that ``_parts`` will become."""
        self._parts: list[str] = []
        self._end = 0
        """Offset in the source up to which text has been put into events."""
        self._logged = 0
        self._written_ids: dict[int, str] = {}
        """By call."""
        self._unseen: list[str] | None = []
        """All text so far, as long as nothing was made of any."""

    def take(self, text: str, tokens: tuple[TokenText, ...], end: int) -> None:
        """Text that the source is given, which ends at offset ``end``, and the tokens that end in it."""
        if tokens:
            self._tokens.append((end, tokens))
        if self._unseen is not None:
            self._unseen.append(text)

    def drain(self) -> list[ReplyEvent]:
        """The events so far."""
        self._flush()
        events, self._events = self._events, []
        return events

    def known_tool(self, name: str) -> None:
        """Raises Broken when there is no tool of this name."""
        if name not in self.context.tools:
            raise Broken(f"{name[:100]!r} is not among the tools")

    def start_call(self, name: str) -> None:
        """Announce a call to a known tool."""
        assert self._arguments is None, "calls follow one another"
        assert name in self.context.tools, "readers look before they announce"
        self.content.cut()
        self._source.recorded()
        self._flush()
        self._seen()
        self._arguments = JsonReader(self._argument_text)
        self._events.append(ToolCallStarted(self._choice, self.calls, self.context.new_call_id(), name))

    @property
    def arguments(self) -> JsonReader:
        """Takes the arguments of the call under way."""
        assert self._arguments is not None, "no call is under way"
        return self._arguments

    def write(self, json_text: str) -> None:
        """Arguments that a reader made itself. Raises Broken where they are not JSON."""
        self.arguments.feed(json_text)

    def finish_call(self) -> None:
        """The call under way is complete; what is read from here on is recorded."""
        assert self.arguments.done, "the arguments are complete"
        self._flush()
        self._arguments = None
        self._events.append(ToolCallFinished(self._choice, self.calls))
        self.calls += 1
        self._source.record()

    def last_call_is(self, written_id: str) -> None:
        """The model has given the call that was finished last this id."""
        assert self.calls, "a call is finished"
        self._written_ids[self.calls - 1] = written_id

    def broken(self, reason: str, text: TrimmedText, *, expected: bool = True) -> None:
        """End a call that went wrong: see the rules. What was none becomes ``text``.

        It is no fault where no call was ``expected``.
        """
        if self._arguments is None:
            recorded = self._source.recorded()
            if recorded.strip(SPACE):
                if expected and not self.cut_short:
                    self._log("what looked like a tool call was left as text: %s", reason)
                text.feed(recorded)
            return
        self._source.recorded()
        if self.cut_short:
            self._source.skip_rest()  # part of a marker that belongs to the call
            return
        self._log("the arguments of a tool call were cut off: %s", reason)
        self._arguments.close()
        self.finish_call()
        self._source.recorded()

    def finish(self, finished: ChoiceFinished) -> None:
        """The choice is over."""
        self.content.end()
        self._flush()
        if self._unseen is not None and not self.cut_short and (text := "".join(self._unseen)):
            self._log("a reply of nothing but marks is shown as it is")
            self._content(text, 0)
            self._flush()
        left = tuple(token for _, tokens in self._tokens for token in tokens)
        self._tokens.clear()
        if left:
            self._events.append(TextDelta(self._choice, "", left))
        ids = tuple(map(self._written_ids.get, range(self.calls))) if self._written_ids else ()
        self._events.append(ChoiceFinished(self._choice, finished.reason, finished.stop_string, self.calls, ids))

    def _log(self, message: str, *values: str) -> None:
        if self._logged < LOG_LIMIT:
            logger.warning(message, *values)
        self._logged += 1

    def _content(self, text: str, held: int) -> None:
        self._put("content", lambda text, tokens: TextDelta(self._choice, text, tokens), text, held)

    def _reasoning(self, text: str, held: int) -> None:
        self._put("reasoning", lambda text, tokens: ReasoningDelta(self._choice, text, tokens), text, held)

    def _argument_text(self, text: str) -> None:
        self._put("call", lambda text, tokens: ToolCallDelta(self._choice, self.calls, text, tokens), text, 0)

    def _put(self, kind: str, make: _Make, text: str, held: int) -> None:
        if self._delta is None or self._delta[0] != kind:
            self._flush()
            self._delta = (kind, make)
        self._seen()
        self._parts.append(text)
        self._end = self._source.offset - held

    def _seen(self) -> None:
        self._unseen = None

    def _flush(self) -> None:
        if self._delta is None:
            return
        tokens: list[TokenText] = []
        while self._tokens and self._tokens[0][0] <= self._end:
            tokens.extend(self._tokens.popleft()[1])
        self._events.append(self._delta[1]("".join(self._parts), tuple(tokens)))
        self._delta = None
        self._parts = []
