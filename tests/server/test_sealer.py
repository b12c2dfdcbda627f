"""When a turn is sealed: only while no request is there, the latest first, and only if it pays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from anchorline.api.chat import ChatPrompt
from anchorline.engine.request import GenerationRequest, ReplyConsumer
from anchorline.engine.sealing import PROBE_SECONDS, SealCounters
from anchorline.engine.stats import EngineStats
from anchorline.errors import AnchorlineError, Cancelled, PromptTooLong
from anchorline.output.meaning import Said
from anchorline.prompt.turns import GeneratedTurn
from anchorline.server.sealing import Asked, Sealer
from tests.api.test_replies import REPORT
from tests.server.standin import StandInEngine
from tests.server.support import make_state

pytestmark = pytest.mark.anyio


class Bench:
    """A sealer over an engine that keeps background calls until the test ends them."""

    def __init__(self, *, sealed_turns: int = 2) -> None:
        self.engine = KeepingEngine()
        self.seconds = 1000.0
        state = make_state(self.engine)
        self.sealer = Sealer(
            replace(state, sealed_turns=sealed_turns, monotonic=lambda: self.seconds), quiet_seconds=0.0
        )

    def ask(self, name: str, said: str = "Yes.") -> None:
        """A request comes, is answered and leaves."""
        self.sealer.arrive()
        self.answer(name, said)
        self.sealer.leave()

    def answer(self, name: str, said: str = "Yes.") -> None:
        chat = ChatPrompt(
            messages=[{"role": "user", "content": name}], tools=None, add_generation_prompt=True, template_kwargs=None
        )
        built = self.sealer._state.prompts.chat(chat.messages)
        asked = Asked(chat=chat, prompt=built.prompt, tenant="")
        self.sealer.begin(asked)
        tokens = np.frombuffer(f" {said}".encode(), dtype=np.uint8).astype(np.int32)
        turn = GeneratedTurn(tokens=tokens, text=said, said=Said(reasoning="", content=said, calls=()))
        self.sealer.offer(asked, turn)

    @property
    def sealing(self) -> list[str]:
        """What the engine was asked to prefill ahead."""
        return [bytes(request.prompt.tokens.tolist()).decode() for request, _ in self.engine.kept]


class KeepingEngine(StandInEngine):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[GenerationRequest, ReplyConsumer]] = []
        self.pays = True
        self.running = 0
        self.refusal: AnchorlineError | None = None

    def submit(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        assert request.background
        if self.refusal is not None:
            raise self.refusal
        self.kept.append((request, consumer))

    def cancel(self, request_id: str) -> None:
        for request, consumer in self.kept:
            if request.id == request_id:
                consumer.on_error(Cancelled("by the test"), None)

    def stats(self) -> EngineStats:
        return replace(super().stats(), running=self.running, waiting=0, seals=SealCounters(pays=self.pays))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def rest(bench: Bench) -> None:
    """Until the sealer does nothing any more."""
    await until(lambda: bench.sealer._work is None or bench.sealer._work.done())


SEALED = "user: one\nassistant: Yes.\nuser: "


async def test_a_turn_is_sealed_up_to_the_words_that_will_follow() -> None:
    bench = Bench()
    bench.ask("one")
    await until(lambda: bool(bench.engine.kept))
    assert bench.sealing == [SEALED]
    request, consumer = bench.engine.kept[0]
    assert (request.max_tokens, request.prompt.guessed) == (0, True)
    consumer.on_done(REPORT)
    await rest(bench)
    assert len(bench.engine.kept) == 1


async def test_nothing_begins_while_another_request_is_there() -> None:
    bench = Bench()
    bench.sealer.arrive()
    bench.ask("one")
    await rest(bench)
    assert bench.sealing == []
    bench.sealer.leave()
    await until(lambda: bool(bench.engine.kept))


async def test_what_a_request_interrupts_is_taken_up_again() -> None:
    bench = Bench()
    bench.ask("one")
    await until(lambda: bool(bench.engine.kept))
    bench.sealer.arrive()
    await rest(bench)
    assert len(bench.engine.kept) == 1
    bench.sealer.leave()
    await until(lambda: len(bench.engine.kept) == 2)
    assert bench.sealing == [SEALED, SEALED]


async def test_a_request_stops_what_is_being_rendered() -> None:
    bench = Bench()
    bench.ask("one")
    await until(lambda: bench.sealer._preparing is not None)
    bench.sealer.arrive()
    await rest(bench)
    assert bench.sealing == []
    bench.sealer.leave()
    await until(lambda: bench.sealing == [SEALED])


async def test_a_request_that_is_answered_at_once_costs_no_turn_its_seal() -> None:
    bench = Bench()
    bench.ask("one")
    await until(lambda: bench.sealer._preparing is not None)
    bench.sealer.arrive()
    bench.sealer.leave()
    await until(lambda: bench.sealing == [SEALED])


async def test_a_request_that_comes_when_all_is_rendered_stops_the_prefill() -> None:
    bench = Bench()
    bench.ask("one")
    await until(lambda: bench.sealer._preparing is not None and bench.sealer._preparing.done())
    bench.sealer.arrive()
    await rest(bench)
    assert bench.sealing == []
    bench.sealer.leave()
    await until(lambda: bench.sealing == [SEALED])


async def test_a_conversation_that_goes_on_has_nothing_old_left_to_seal() -> None:
    bench = Bench()
    bench.sealer.arrive()
    bench.answer("one")
    bench.ask("one", "No.")
    bench.sealer.leave()
    await until(lambda: bool(bench.engine.kept))
    bench.engine.kept[0][1].on_done(REPORT)
    await rest(bench)
    assert bench.sealing == ["user: one\nassistant: No.\nuser: "]


async def test_the_latest_conversations_are_remembered_and_sealed_in_that_order() -> None:
    bench = Bench(sealed_turns=2)
    bench.sealer.arrive()
    for name in ("one", "two", "three"):
        bench.answer(name)
    bench.sealer.leave()
    for count in (1, 2):
        await until(lambda count=count: len(bench.engine.kept) == count)  # type: ignore[misc]
        bench.engine.kept[-1][1].on_done(REPORT)
    await rest(bench)
    assert [text.split("\n")[0] for text in bench.sealing] == ["user: three", "user: two"]


async def test_while_it_does_not_pay_there_is_one_probe_in_a_while() -> None:
    bench = Bench()
    bench.engine.pays = False
    bench.ask("one")
    await until(lambda: bool(bench.engine.kept))
    bench.engine.kept[0][1].on_done(REPORT)
    await rest(bench)
    bench.ask("two")
    await rest(bench)
    assert len(bench.engine.kept) == 1
    bench.seconds += PROBE_SECONDS
    bench.ask("three")
    await until(lambda: len(bench.engine.kept) == 2)


async def test_it_waits_for_an_engine_that_is_busy_by_itself() -> None:
    bench = Bench()
    bench.engine.running = 1
    bench.ask("one")
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.sealing == []
    bench.engine.running = 0
    await until(lambda: bool(bench.engine.kept))


async def test_a_turn_that_the_engine_refuses_is_let_go() -> None:
    bench = Bench()
    bench.engine.refusal = PromptTooLong(prompt_tokens=9, context_tokens=8)
    bench.ask("one")
    await rest(bench)
    bench.engine.refusal = None
    bench.sealer.arrive()
    bench.sealer.leave()
    await rest(bench)
    assert bench.sealing == []
