"""Compiling what is asked of a reply, with a cache, limits and errors that name the offending part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from anchorline.constraint.fault import locate, show
from anchorline.constraint.grammar import CallTags, grammar_of, grammar_of_part
from anchorline.constraint.matcher import CompiledConstraint
from anchorline.constraint.multiples import MOST_REMAINDERS, too_many_remainders
from anchorline.constraint.spec import Answer, ConstraintSpec, JsonSchema, OfferedCalls, Reasoning
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.errors import ConstraintFailure, RequestError
from anchorline.limits import Limits
from anchorline.prompt.memo import ByteMemo

_NOISE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_TOO_LARGE = re.compile(r"^panic: |grammar size \(number of symbols\) too big")
"""How llguidance reports a grammar that breaks one of its own assertions or MOST_SYMBOLS."""
_MESSAGE_CHARACTERS = 400


MOST_SYMBOLS = 40_000
"""Size of a grammar; the time to compile one grows with its square, to about 2 s here."""
MOST_ALTERNATIVES = 20_000
"""Parts of a grammar that may come next at one place: an object of 1,000 optional properties has 4,000."""


def no_call_tags(_tool: str) -> None:
    """Of a format whose calls are not one piece of JSON."""


class ConstraintCompiler:
    """Compiles for one model. Thread-safe and CPU-bound: for the threads that prepare requests."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._parser_limits = LLParserLimits(
            max_grammar_size=MOST_SYMBOLS, max_items_in_row=MOST_ALTERNATIVES, verbose_errors=False
        )
        self._compiled: ByteMemo[str, CompiledConstraint] = ByteMemo(
            limits.grammar_cache_bytes, limit_entries=limits.grammar_cache
        )
        self.compiled = 0
        """Grammars that were not found in the cache."""

    def compile(
        self, spec: ConstraintSpec, *, reasoning: Reasoning | None = None, call_tags: CallTags = no_call_tags
    ) -> CompiledConstraint | None:
        """The constraint of ``spec``, or None when it leaves every reply open.

        ``call_tags`` says how the model's format writes a call; where it gives None the arguments of
        calls that are merely offered stay free. Raises RequestError with the path of what is at fault.
        """
        spec = _enforceable(spec, call_tags)
        if spec.answer is None and spec.calls is None:
            return None
        self._check(spec)
        grammar = grammar_of(
            spec,
            reasoning=reasoning,
            call_tags=call_tags,
            control_tokens=self._vocabulary.tokenizer.control_tokens,
        )
        self._check_size(len(grammar.encode()), _field(spec))
        known = self._compiled.get(grammar)
        if known is not None:
            return known
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise self._fault(spec, matcher.get_error())
        self.compiled += 1
        made = CompiledConstraint(matcher, vocab_size=self._vocabulary.tokenizer.vocab_size)
        try:
            first = made.start()
            # Of a text that no tokens spell, llguidance allows some that it then does not take.
            first.accept(int(first.allowed()[0]))
        except ConstraintFailure as failure:
            field = _field(spec)
            message = f"{field} cannot be satisfied: no text of this model's tokens follows it"
            raise RequestError(message, field=field, code="invalid_schema") from failure
        self._compiled.put(grammar, made, len(grammar))
        return made

    def _matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._vocabulary.get(), grammar, log_level=0, limits=self._parser_limits)

    def _check(self, spec: ConstraintSpec) -> None:
        """Refuse what must not even be written down as a grammar."""
        if not self._vocabulary.can_end:
            field = _field(spec)
            raise RequestError(f"{field} needs a model with an end-of-generation token", field=field)
        for part in _parts(spec):
            if isinstance(part, JsonSchema) and _is_deeper(part.schema, self._limits.grammar_depth):
                raise RequestError(
                    f"{part.field} is nested more than {self._limits.grammar_depth} deep (--max-grammar-depth)",
                    field=part.field,
                )
            if isinstance(part, JsonSchema) and too_many_remainders(part.schema):
                raise RequestError(
                    f"{part.field} asks for multiples of numbers whose least common multiple, without decimal points, "
                    f"is over {MOST_REMAINDERS}",
                    field=part.field,
                )

    def _check_size(self, size_bytes: int, field: str) -> None:
        limit = self._limits.grammar_bytes
        if size_bytes > limit:
            raise RequestError(
                f"{field} makes a grammar of {size_bytes} bytes; at most {limit} are allowed (--max-grammar-bytes)",
                field=field,
            )

    def _fault(self, spec: ConstraintSpec, error: str) -> RequestError:
        """Why ``spec`` cannot be compiled: the first part that cannot be on its own, else all of it."""
        field = _field(spec)
        for part in _parts(spec) if _TOO_LARGE.search(error) is None else ():
            alone = self._error_of(part)
            if alone is not None:
                field, error = self._located(part) if isinstance(part, JsonSchema) else (part.field, alone)
                break
        return RequestError(f"{field}: {_plain(error)}", field=field, code="invalid_schema")

    def _located(self, part: JsonSchema) -> tuple[str, str]:
        path, error = locate(part.schema, lambda schema: self._error_of(replace(part, schema=schema)))
        return part.field + show(path), error

    def _error_of(self, part: Answer) -> str | None:
        """What is wrong with a part on its own, or None."""
        matcher = self._matcher(grammar_of_part(part))
        return matcher.get_error() if matcher.is_error() else None


def _enforceable(spec: ConstraintSpec, call_tags: CallTags) -> ConstraintSpec:
    """``spec`` without the offered calls of a format that does not write them as JSON."""
    calls = spec.calls
    if isinstance(calls, OfferedCalls) and any(call_tags(tool.name) is None for tool in calls.tools):
        return replace(spec, calls=None)
    return spec


def _parts(spec: ConstraintSpec) -> Iterator[Answer]:
    if spec.answer is not None:
        yield spec.answer
    if spec.calls is not None:
        for tool in spec.calls.tools:
            yield tool.arguments


def _field(spec: ConstraintSpec) -> str:
    if spec.answer is not None:
        return spec.answer.field
    assert spec.calls is not None
    return spec.calls.field


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists are nested more than ``depth`` deep, found without recursion."""
    level = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _plain(message: str) -> str:
    """An error of llguidance's without positions in a grammar that the client has never seen."""
    if _TOO_LARGE.search(message):
        return "it is too large or too complex to be compiled"
    text = " ".join(_EXCERPT.sub("", _NOISE.sub("", message)).split())
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"
