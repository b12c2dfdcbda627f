"""From what is asked of a reply to one grammar in llguidance's form of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from anchorline.constraint.spec import (
    Answer,
    Choices,
    ConstraintSpec,
    ForcedCalls,
    Grammar,
    JsonSchema,
    OfferedCalls,
    Reasoning,
    Regex,
    Tool,
)
from anchorline.errors import RequestError
from anchorline.output.format import CallTag

CallTags = Callable[[str], CallTag | None]
"""What the model's format writes around the arguments of a call to a tool, by the tool's name."""

MOST_CALLS = 16
"""Forced calls in one reply: a model that finds no end would fill the context with them."""

_JSON_SPACE = r"\x20|\n[\x20\t]{0,20}"
"""White space between the parts of JSON: enough for the usual layouts, too little to run away in."""
_SPACE = "SPACE: /[ \\n]{1,4}/"
_TEXT = "TEXT: /(?s:.*)/"


def grammar_of(
    spec: ConstraintSpec, *, reasoning: Reasoning | None, call_tags: CallTags, control_tokens: Mapping[str, int]
) -> str:
    """The grammar of a whole reply. Raises RequestError for GBNF that cannot be read."""
    builder = _Builder(control_tokens, before_answer="" if reasoning is None else reasoning.tags.before_answer)
    match spec.calls:
        case ForcedCalls():
            body = builder.forced(spec.calls)
        case OfferedCalls():
            body = builder.offered(spec.calls, call_tags, spec.answer)
        case None:
            assert spec.answer is not None, "a constraint without anything to keep to"
            body = builder.answer(spec.answer)
    builder.rule("body", body)
    return builder.finish("body" if reasoning is None else builder.behind(reasoning, "body"))


def grammar_of_part(part: Answer) -> str:
    """The grammar of one part alone. Raises RequestError for GBNF that cannot be read."""
    builder = _Builder({}, before_answer="")
    return builder.finish(builder.answer(part))


class _Builder:
    """Collects rules; each method gives an expression that refers to those it has added."""

    def __init__(self, control_tokens: Mapping[str, int], *, before_answer: str) -> None:
        self._control_tokens = control_tokens
        self._before_answer = before_answer
        self._rules: list[str] = []
        self._others: list[dict[str, Any]] = []
        by_length = sorted(control_tokens, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, by_length))) if by_length else None

    def rule(self, name: str, body: str, *, options: str = "") -> str:
        self._rules.append(f"{name}{options}: {body}")
        return name

    def finish(self, start: str) -> str:
        rules = "\n".join([f"start: {start}", *self._rules, _SPACE, _TEXT])
        return json.dumps({"grammars": [{"name": "reply", "lark_grammar": rules}, *self._others]})

    def answer(self, answer: Answer) -> str:
        return self._shown(self._answer(answer))

    def _answer(self, answer: Answer) -> str:
        match answer:
            case JsonSchema():
                return self.rule("answer", _json_rule(answer))
            case Choices():
                return self.rule("answer", " | ".join([json.dumps(text) for text in answer.texts]))
            case Regex():
                made = json.loads(LLMatcher.grammar_from_regex(answer.pattern))["grammars"][0]
                return self._other(made["lark_grammar"])
            case Grammar():
                return self._other(_lark(answer))

    def forced(self, calls: ForcedCalls) -> str:
        """Calls as bare JSON, one or a list."""
        written = []
        for index, tool in enumerate(calls.tools):
            begin = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
            written.append(self.rule(f"call_{index}", f'{begin} {self._arguments(index, tool)} "}}"'))
        call = self.rule("call", " | ".join(written))
        if not calls.several:
            return self._shown(call)
        return self._shown(f'({call} | "[" {call} ("," SPACE? {call}){{0,{MOST_CALLS - 1}}} "]")')

    def offered(self, calls: OfferedCalls, call_tags: CallTags, answer: Answer | None) -> str:
        """Calls in the model's format, among free text or in the place of an answer."""
        by_trigger: dict[str, list[str]] = {}
        for index, tool in enumerate(calls.tools):
            tag = call_tags(tool.name)
            assert tag is not None, "a format whose calls cannot be written as JSON"
            rest = tag.begin.removeprefix(tag.trigger)
            parts = [self._spelled(rest), self._arguments(index, tool), self._spelled(tag.end)]
            by_trigger.setdefault(tag.trigger, []).append(
                self.rule(f"call_{index}", " ".join([part for part in parts if part]))
            )
        turns = []
        for number, (trigger, written) in enumerate(by_trigger.items()):
            any_call = " | ".join(written)
            head = self._upto(f"head_{number}", trigger) if answer is None else f"SPACE? {self._spelled(trigger)}"
            turns.append(self.rule(f"turn_{number}", f"{head} ({any_call})"))
        turn = self.rule("turn", " | ".join(turns))
        if answer is None:
            text = self._shown("TEXT")
            return f"{turn}* {text} | {turn}+" if calls.several else f"{turn} SPACE? | {text}"
        made = self.answer(answer)
        return f"{turn}+ SPACE? | {made}" if calls.several else f"{turn} SPACE? | {made}"

    def behind(self, reasoning: Reasoning, body: str) -> str:
        """``body`` behind a block of free text, which the model may leave out unless it is open already."""
        tags = reasoning.tags
        block = f"{self._upto('reasoning', tags.end)} {self._spelled(tags.after_end.strip())} SPACE?"
        if reasoning.opened:
            return f"{block} {body}"
        return f"({self._spelled(tags.begin)} {block})? {body}"

    def _shown(self, body: str) -> str:
        """``body`` with what the format puts before every answer."""
        return f"{self._spelled(self._before_answer)} {body}" if self._before_answer else body

    def _upto(self, name: str, end: str) -> str:
        """Free text up to the first ``end``, which may hold control tokens: free text never does."""
        if self._controls is not None and self._controls.search(end):
            return self.rule(name, f"TEXT {self._spelled(end)}")
        return self.rule(name, f"TEXT {json.dumps(end)}", options="[lazy]")

    def _arguments(self, index: int, tool: Tool) -> str:
        return self.rule(f"arguments_{index}", _json_rule(tool.arguments))

    def _other(self, lark: str) -> str:
        self._others.append({"name": "answer", "lark_grammar": lark})
        return "@answer"

    def _spelled(self, text: str) -> str:
        """``text`` as strings and, where it holds control tokens, references to them."""
        if self._controls is None:
            return json.dumps(text) if text else ""
        parts, done = [], 0
        for found in self._controls.finditer(text):
            parts += [json.dumps(text[done : found.start()])] if found.start() > done else []
            parts.append(f"<[{self._control_tokens[found[0]]}]>")
            done = found.end()
        parts += [json.dumps(text[done:])] if done < len(text) else []
        return " ".join(parts)


def _json_rule(answer: JsonSchema) -> str:
    if answer.schema is False:
        return "%json false"
    schema = {} if answer.schema is True else answer.schema
    options = {"whitespace_pattern": _JSON_SPACE, "lenient": not answer.strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _lark(grammar: Grammar) -> str:
    try:
        return any_to_lark(grammar.text)
    except Exception as error:
        raise RequestError(f"{grammar.field} cannot be read as GBNF: {error}", field=grammar.field) from error
