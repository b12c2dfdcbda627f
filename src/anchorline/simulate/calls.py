"""From recorded requests to the calls of a simulation: their prompts, and what each waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from anchorline.api.chat import parse_apply_template
from anchorline.bench.due import Due
from anchorline.bench.live.schedule import AT_ONCE, plan_calls
from anchorline.bench.trace import Trace, TraceRequest
from anchorline.cache.prompt import DEFAULT_TENANT, Prompt
from anchorline.errors import ConfigError, RequestError
from anchorline.limits import Limits
from anchorline.llama.model import Model
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.select import select_template
from anchorline.server.prepare import build_chat

RECORDED_NOW = datetime(2026, 1, 1)
"""The time that templates show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCall(Due):
    """One recorded call, and when it is sent."""

    trace: str
    prompt: Prompt


@dataclass(slots=True)
class PromptSource:
    """Makes the prompts that a server of ``model`` would make. Only its vocabulary and template are used."""

    model: Model
    _builder: PromptBuilder = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.model.tokenizer
        selected = select_template(None, self.model.info, tokenizer)
        self._builder = PromptBuilder(tokenizer, selected, clock=lambda: RECORDED_NOW)

    def prompt(self, request: TraceRequest) -> Prompt:
        """Raises RequestError when the body cannot be rendered."""
        asked, _ = parse_apply_template(json.dumps(request.body).encode(), limits=Limits())
        return build_chat(asked, self._builder, tenant=DEFAULT_TENANT).prompt


def one_after_another(trace: Trace, source: PromptSource) -> list[SimulatedCall]:
    """The calls of ``trace``, each sent after the end of the one before."""
    return [
        SimulatedCall(trace=trace.name, prompt=prompt, after=(index - 1,) if index else ())
        for index, prompt in enumerate(_prompts(trace, source))
    ]


def all_at_once(traces: Sequence[Trace], source: PromptSource, *, pace: float = AT_ONCE) -> list[SimulatedCall]:
    """Every trace on its own beside the others, ``pace`` times as fast as recorded.

    Within a trace a call overlaps those that it overlapped when recorded.
    """
    prompts = [prompt for trace in traces for prompt in _prompts(trace, source)]
    return [
        SimulatedCall(
            trace=call.trace,
            prompt=prompt,
            after=call.after,
            gap_seconds=call.gap_seconds,
            earliest_seconds=call.earliest_seconds,
        )
        for call, prompt in zip(plan_calls(traces, pace=pace, overlapping=True), prompts, strict=True)
    ]


def _prompts(trace: Trace, source: PromptSource) -> Iterator[Prompt]:
    """The prompts of a trace. Raises ConfigError naming the request that cannot be rendered."""
    for index, request in enumerate(trace.requests):
        try:
            yield source.prompt(request)
        except RequestError as error:
            raise ConfigError(f"{trace.name}, request {index} of its chat calls: {error}") from error
