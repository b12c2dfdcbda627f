"""The explanations of a server: how they are made, and those of its latest calls."""

from __future__ import annotations

from collections import deque
from itertools import islice

from anchorline.api.explanation import Explanation, Spelling, explain
from anchorline.api.explanation_wire import ExplainedCall
from anchorline.cache.prompt import Prompt
from anchorline.engine.request import CallReport
from anchorline.llama.interface import Tokenizer


class Explanations:
    """Makes explanations, and keeps those of the latest calls of all tenants together. Lives on the event loop."""

    def __init__(self, tokenizer: Tokenizer, *, calls: deque[ExplainedCall]) -> None:
        """``calls`` are those before; its ``maxlen`` is how many are kept."""
        self._spelling = Spelling(tokenizer)
        self._calls = calls

    def explain(self, report: CallReport, prompt: Prompt, *, cache: bool) -> Explanation:
        return explain(report, prompt, self._spelling, cache=cache)

    def keep(self, call: ExplainedCall) -> None:
        """Remember a call that has ended; the oldest one is forgotten for it."""
        self._calls.append(call)

    def latest(self, tenant: str, *, limit: int) -> list[ExplainedCall]:
        """Of the calls that are kept the tenant's, the newest first."""
        return list(islice((call for call in reversed(self._calls) if call.tenant == tenant), limit))
