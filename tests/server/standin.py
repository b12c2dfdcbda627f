"""A stand-in for model and engine: bytes are tokens, and the reply is written by the test.

It keeps the engine's contract (its own thread, the ReplyConsumer order, cancel by id), so that the
HTTP layer can be tested to the last event without a model.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from anchorline.cache.difference import Difference
from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.cache.storage import CacheCounters
from anchorline.cache.tokens import common_prefix
from anchorline.engine.commands import Command, PinAnchor
from anchorline.engine.request import (
    CallReport,
    FinishReason,
    GenerationRequest,
    MissReason,
    PlanKind,
    ReplyConsumer,
    SampledToken,
)
from anchorline.engine.stats import EngineStats
from anchorline.errors import AnchorlineError, Cancelled, Conflict, EngineFailure, QueueFull, RequestError
from anchorline.llama.interface import SamplingParams, TokenArray, TokenLogprob
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting

T = TypeVar("T")

CONTROL = {"<|im_start|>": 256, "<|im_end|>": 257, "<|bos|>": 258}


class ByteTokenizer:
    """One token per byte, and three control tokens."""

    control_tokens: Mapping[str, int] = CONTROL
    strips: Mapping[str, tuple[bool, bool]] = {}
    vocab_size = 259
    eos = 257
    end_of_generation = frozenset({257})

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.bos = 258 if adds_bos else None

    def tokenize(self, text: str) -> TokenArray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def special_piece(self, token: int) -> bytes:
        names = {number: name.encode() for name, number in CONTROL.items()}
        return names[token] if token in names else bytes([token])

    def detokenize(self, tokens: Sequence[int] | TokenArray) -> bytes:
        return b"".join(self.piece(int(token)) for token in tokens)


@dataclass
class Script:
    """What the next replies say."""

    reply: Sequence[int] = b"Hello, world"
    error: AnchorlineError | None = None
    """Raised to the consumer after ``error_after`` tokens."""
    error_after: int = 0
    queue_full: bool = False
    miss: MissReason | None = None
    difference: Difference | None = None
    paused: bool = False
    """Makes replies wait for ``StandInEngine.allow``."""


@dataclass
class StandInEngine:
    """Answers requests one after the other on its own thread."""

    context_tokens: int = 4096
    parallel: int = 4
    script: Script = field(default_factory=Script)
    prepared: list[SamplingParams] = field(default_factory=list)
    submitted: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    keeps: bool = False
    """Whether anchors can be prefilled."""

    def __post_init__(self) -> None:
        self.alive = True
        self._inbox: deque[tuple[GenerationRequest, ReplyConsumer]] = deque()
        self._changed = threading.Condition()
        self._allowed = 0
        self._produced = 0
        self._waiting = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self.alive = False
            self._changed.notify_all()
        self._thread.join()

    def prepare(self, sampling: SamplingParams) -> None:
        self.prepared.append(sampling)

    def submit(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        if not self.alive:
            raise EngineFailure("the engine has stopped")
        if self.script.queue_full:
            raise QueueFull(waiting=64, limit=64, retry_after_seconds=3)
        with self._changed:
            self.submitted.append(request)
            self._inbox.append((request, consumer))
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            self.cancelled.append(request_id)
            self._changed.notify_all()

    def allow(self, tokens: int) -> None:
        """Let a paused reply go on for ``tokens`` more tokens."""
        with self._changed:
            self._allowed += tokens
            self._changed.notify_all()

    def wait_for_submission(self, count: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.submitted) >= count, timeout=30)

    def wait_for_tokens(self, count: int) -> None:
        """Until a paused reply has produced ``count`` tokens and stands still."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._produced == count and self._waiting, timeout=30)

    def wait_for_cancel(self, request_id: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: request_id in self.cancelled, timeout=30)

    def wait_for_finish(self, request_id: str) -> None:
        """Until the engine has let go of a request, however it ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: request_id in self.finished, timeout=30)

    def ask(self, command: Command[T]) -> Future[T]:
        """It says that no anchor is there yet, or that it keeps nothing."""
        answer: Future[Any] = Future()
        if self.keeps and isinstance(command, PinAnchor):
            answer.set_result(None)
        else:
            answer.set_exception(Conflict("the server keeps nothing: its cache is off", code="cache_off"))
        return answer

    def fresh_stats(self) -> Future[EngineStats]:
        answer: Future[EngineStats] = Future()
        answer.set_result(self.stats())
        return answer

    def stats(self) -> EngineStats:
        return EngineStats(
            alive=self.alive,
            running=1,
            waiting=2,
            held=1,
            queue_limit=64,
            resident_sequences=1,
            resident_tokens=30,
            context_tokens=self.context_tokens,
            decode_calls=5,
            decoded_tokens=40,
            preemptions=6,
            dropped_idle=Counter(crowding=41),
            shortened_idle=42,
            awaited_returns=43,
            host_budget_bytes=1 << 30,
            host_used_bytes=7,
            host_segments=8,
            pinned_bytes=9,
            pins=1,
            pin_budget_bytes=23,
            pins_ended=Counter(expired=18),
            pins_refused=Counter(over_budget=24),
            cache=CacheCounters(
                restored_bytes=11,
                exported_bytes=12,
                saved_segments=13,
                evictions=14,
                evicted_bytes=15,
                unsaved=Counter(budget=16),
                restore_failures=17,
                saved_states=19,
                merged_segments=20,
                merged_bytes=21,
                unmerged=Counter(no_room=22),
            ),
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox or not self.alive)
                if not self.alive:
                    waiting = list(self._inbox)
                    break
                request, consumer = self._inbox.popleft()
            self._answer(request, consumer)
            with self._changed:
                self.finished.append(request.id)
                self._changed.notify_all()
        for _, consumer in waiting:
            consumer.on_error(EngineFailure("the engine has stopped"), None)

    def _answer(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        script, generated = self.script, 0
        if request.on_admitted is not None:
            request.on_admitted(self._report(request, 0))
        if request.max_tokens == 0 and not self._may_go_on(request.id):  # a prefill pauses as a whole
            consumer.on_error(Cancelled("cancelled"), self._report(request, 0))
            return
        for choice in range(request.choices):
            reason = FinishReason.STOP
            for position, token in enumerate(self._tokens(request, choice)):
                if position == request.max_tokens:
                    reason = FinishReason.LENGTH
                    break
                if not self._may_go_on(request.id):
                    error = Cancelled("cancelled") if self.alive else EngineFailure("the engine has stopped")
                    consumer.on_error(error, self._report(request, generated))
                    return
                if script.error is not None and position == script.error_after:
                    consumer.on_error(script.error, self._report(request, generated))
                    return
                generated += 1
                if consumer.on_token(choice, self._sampled(token, request.logprobs)):
                    break
            consumer.on_finish(choice, reason)
        consumer.on_done(self._report(request, generated))

    def _tokens(self, request: GenerationRequest, choice: int) -> Iterator[int]:
        """The script's tokens, between them those that the request's forcer asks for."""
        said: list[int] = []
        for token in self.script.reply:
            while request.forcer is not None:
                forced = request.forcer.force(choice, np.array(said, dtype=np.int32))
                if forced is None:
                    break
                said.append(forced)
                yield forced
            said.append(token)
            yield token

    def _may_go_on(self, request_id: str) -> bool:
        with self._changed:
            if self.script.paused:
                self._waiting = self._produced == self._allowed
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._produced < self._allowed or request_id in self.cancelled or not self.alive
                )
                self._produced += 1
            return self.alive and request_id not in self.cancelled

    def _sampled(self, token: int, logprobs: int | None) -> SampledToken:
        if logprobs is None:
            return SampledToken(token)
        others = tuple(TokenLogprob(65 + index, -1.5 - index) for index in range(logprobs))
        return SampledToken(token, -0.25, others)

    def _report(self, request: GenerationRequest, generated: int) -> CallReport:
        prompt_tokens = len(request.prompt)
        host = min(8, prompt_tokens - 1)
        resident = min(4, prompt_tokens - 1 - host)
        return CallReport(
            id=request.id,
            plan=PlanKind.RESTORE,
            prompt_tokens=prompt_tokens,
            resident_tokens=resident,
            host_tokens=host,
            prefilled_tokens=prompt_tokens - host - resident,
            generated_tokens=generated,
            seen_tokens=20,
            miss=self.script.miss,
            difference=self.script.difference,
            sequence=2,
            segments=((resident, resident + host),),
            queue_seconds=0.001,
            sharing_seconds=0.0005,
            switch_seconds=request.switch_seconds,
            plan_seconds=0.002,
            restore_seconds=0.003,
            prefill_seconds=0.004,
            decode_seconds=0.005,
            ttft_seconds=0.006,
        )


@dataclass(frozen=True)
class StandInPrompt:
    prompt: Prompt
    text: str
    render_seconds: float = 0.0005
    tokenize_seconds: float = 0.00025
    asked: bytes = b""
    rewriting: Rewriting = NOTHING_REWRITTEN


class StandInPrompts:
    """Renders a conversation as lines of ``role: content``; the only cut is before the generation prompt."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, object] | None = None,
        effort: str | None = None,
        continue_final: bool = False,
        tenant: str = "",
        generates: bool = True,
    ) -> StandInPrompt:
        lines = [f"tools: {len(tools)}"] if tools else []
        for index, message in enumerate(messages):
            role = message.get("role")
            if role not in ("system", "developer", "user", "assistant", "tool"):
                raise RequestError(f"messages[{index}].role is unknown", field=f"messages[{index}].role")
            lines.append(f"{role}: {message.get('content')}")
        if effort is not None:
            lines.insert(0, f"effort: {effort}")
        if template_kwargs:
            lines.insert(0, json.dumps(template_kwargs, sort_keys=True))
        opens = add_generation_prompt and not continue_final
        if not opens:
            return self.text("\n".join(lines))
        built = self.text("\n".join([*lines, "assistant:"]))
        generation = Cut(len(built.prompt) - len("assistant:"), CutKind.GENERATION, len(messages) - 1)
        return replace(
            built, prompt=replace(built.prompt, cuts=(generation,), message_starts=tuple(0 for _ in messages))
        )

    def beginning(
        self, messages: Sequence[Mapping[str, Any]], one: Sequence[Any], other: Sequence[Any], **options: Any
    ) -> Prompt:
        prompts = [self.chat([*messages, *behind]).prompt for behind in (one, other)]
        return prompts[0].beginning(common_prefix(prompts[0].tokens, prompts[1].tokens))

    def text(self, text: str, *, tenant: str = "") -> StandInPrompt:
        if not text:
            raise RequestError("prompt must not be empty", field="prompt")
        ids: list[int] = [] if not self._tokenizer.adds_bos or text.startswith("<|bos|>") else [CONTROL["<|bos|>"]]
        rest = text
        while rest:
            control = next((name for name in CONTROL if rest.startswith(name)), None)
            if control is not None:
                ids.append(CONTROL[control])
                rest = rest[len(control) :]
                continue
            ids.extend(rest[0].encode())
            rest = rest[1:]
        return StandInPrompt(Prompt(tokens=np.array(ids, dtype=np.int32)), text)

    def fragment(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def tokens(self, ids: Sequence[int]) -> StandInPrompt:
        for index, token in enumerate(ids):
            if not 0 <= token < self._tokenizer.vocab_size:
                raise RequestError(f"prompt[{index}] is not in the vocabulary", field="prompt")
        return StandInPrompt(Prompt(tokens=np.array(ids, dtype=np.int32)), "")
