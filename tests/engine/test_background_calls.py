"""Calls made ahead of need: they run when nothing else does, and what they prefilled is never prefilled again."""

from __future__ import annotations

import pytest

from anchorline.config import EngineConfig
from anchorline.engine.request import GenerationRequest, PlanKind
from anchorline.errors import Cancelled, RequestError
from anchorline.llama.interface import MemoryKind, SamplingParams
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_engine import GatedRuntime, running
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply

kinds = pytest.mark.parametrize("kind", list(MemoryKind))
HEAD = 60
ASKED = [position * 7 % 40 for position in range(200)]
REPLIED = [*ASKED, *(20 + position % 15 for position in range(40))]
"""As the model has it: the prompt and a reply."""
REWRITTEN = [*ASKED[:150], *(position * 3 % 40 for position in range(60))]
"""As the template writes it once it is old: other from the 150th token on."""
RESULT = [5, 6, 7, 8]


def make(kind: MemoryKind = MemoryKind.PLAIN, *, resident_idle: int = 1, cache_bytes: int = 1 << 20) -> Harness:
    runtime = FakeRuntime(context_tokens=1000, sequences=2 + resident_idle, kind=kind)
    return Harness(runtime, parallel=2, resident_idle=resident_idle, cache_bytes=cache_bytes)


def ask(harness: Harness, ids: list[int]) -> Recorder:
    """One call, whose answer must be the fake's own."""
    recorder = harness.ask(make_prompt(ids, head=HEAD))
    assert recorder.tokens[0] == expected_reply(ids, 4, kind=harness.runtime.capabilities.kind)
    return recorder


def restored(recorder: Recorder) -> int:
    assert recorder.report is not None
    return recorder.report.restored_tokens


@kinds
@pytest.mark.parametrize("resident_idle", [0, 1])
@pytest.mark.parametrize("sealed", [[*REPLIED, 1, 2, 3], REWRITTEN], ids=["goes on", "rewritten"])
def test_what_was_prefilled_ahead_is_restored(kind: MemoryKind, resident_idle: int, sealed: list[int]) -> None:
    harness = make(kind, resident_idle=resident_idle)
    ask(harness, REPLIED)
    _, ahead = harness.seal(sealed, head=HEAD)
    harness.run()
    assert ahead.report is not None
    assert restored(ask(harness, [*sealed, *RESULT])) == len(sealed)
    seals = harness.loop.seals.counters
    assert (seals.completed, seals.used_tokens) == (1, seals.prefilled_tokens)
    assert seals.prefilled_tokens == ahead.report.prefilled_tokens


@kinds
def test_what_was_there_before_stays_for_a_request_that_is_another_than_was_guessed(kind: MemoryKind) -> None:
    harness = make(kind)
    known = len(REPLIED) + len(ask(harness, REPLIED).tokens[0]) - 1
    harness.seal(REWRITTEN, head=HEAD)
    harness.run()
    reply = expected_reply(REPLIED, 4, kind=kind)
    assert restored(ask(harness, [*REPLIED, *reply[:-1], *RESULT])) == known
    assert harness.loop.seals.counters.used_tokens == 0


@pytest.mark.parametrize("kind", [MemoryKind.PLAIN, MemoryKind.WINDOWED, MemoryKind.HYBRID])
def test_a_sequence_that_could_not_be_saved_stays_beside_what_goes_on_from_it(kind: MemoryKind) -> None:
    harness = make(kind, resident_idle=2, cache_bytes=64)
    recorder = ask(harness, REPLIED)
    known = [*REPLIED, *recorder.tokens[0][:-1]]
    harness.seal([*known, 1, 2, 3], head=HEAD)
    harness.run()
    assert harness.loop.seals.counters.prefilled_tokens <= 4
    assert restored(ask(harness, [*known, *RESULT])) == len(known)


@kinds
def test_a_call_that_comes_in_the_middle_goes_on_from_there(kind: MemoryKind) -> None:
    harness = make(kind)
    ask(harness, ASKED)
    sealed = [*ASKED[:150], *(position * 3 % 40 for position in range(300))]
    _, ahead = harness.seal(sealed, head=HEAD)
    before = harness.runtime.decoded_tokens
    while harness.runtime.decoded_tokens < before + 100:
        harness.loop.step()
    _, recorder = harness.open(make_prompt([*sealed, *RESULT], head=HEAD))
    assert isinstance(ahead.error, Cancelled)
    harness.run()
    assert recorder.tokens[0] == expected_reply([*sealed, *RESULT], 4, kind=kind)
    resumed = HEAD if kind is not MemoryKind.PLAIN else 150
    assert harness.runtime.decoded_tokens - before == len(sealed) - resumed + len(RESULT) + 3
    assert harness.loop.seals.counters.gave_way == 1


def test_a_step_of_it_is_no_longer_than_a_ubatch() -> None:
    harness = make()
    harness.seal(REWRITTEN)
    harness.run()
    limits = harness.runtime.limits
    assert {end - start for _, start, end in harness.runtime.chunks} <= set(range(limits.ubatch_tokens + 1))
    harness.runtime.chunks.clear()
    ask(harness, [9, *ASKED])
    assert max(end - start for _, start, end in harness.runtime.chunks) == limits.batch_tokens


def test_it_is_not_begun_beside_another_call() -> None:
    harness = make()
    _, recorder = harness.open(make_prompt(ASKED))
    _, ahead = harness.seal(REWRITTEN)
    assert isinstance(ahead.error, Cancelled)
    harness.loop.step()
    _, ahead = harness.seal(REWRITTEN)
    assert isinstance(ahead.error, Cancelled)
    harness.run()
    assert recorder.error is None
    assert harness.loop.seals.counters.prefilled_tokens == 0


@kinds
@pytest.mark.parametrize("replied", [REPLIED, [*REPLIED, *REPLIED]], ids=["trimmed", "forked"])
def test_it_takes_the_place_of_the_sequence_that_it_follows_and_of_no_other(
    kind: MemoryKind, replied: list[int]
) -> None:
    harness = make(kind, resident_idle=2)
    other = [9, *ASKED[1:]]
    ask(harness, other)
    ask(harness, replied)
    harness.seal(REWRITTEN, head=HEAD)
    harness.run()
    known = [*other, *expected_reply(other, 4, kind=kind)[:-1]]
    report = ask(harness, [*known, *RESULT]).report
    assert report is not None
    assert (report.plan, report.restored_tokens) == (PlanKind.CONTINUE, len(known))


def test_it_takes_no_place_in_the_queue() -> None:
    runtime = GatedRuntime()
    with running(runtime, EngineConfig(parallel=1, resident_idle=1, queue=0)) as engine:
        ahead, recorder = Recorder(), Recorder()
        guess = make_prompt(REWRITTEN).beginning(len(REWRITTEN))
        engine.submit(request(make_prompt([1]).beginning(1), "a"), Recorder())
        engine.submit(request(guess, "b"), ahead)
        engine.submit(
            GenerationRequest(id="c", prompt=make_prompt(ASKED), sampling=SamplingParams(), max_tokens=4), recorder
        )
        runtime.gate.set()
        assert recorder.wait().tokens[0] == expected_reply(ASKED, 4)
        assert isinstance(ahead.wait().error, Cancelled)


def request(prompt: object, id: str) -> GenerationRequest:
    return GenerationRequest(id=id, prompt=prompt, sampling=SamplingParams(), max_tokens=0, background=True)  # type: ignore[arg-type]


def test_it_has_no_reply() -> None:
    with running(FakeRuntime()) as engine, pytest.raises(RequestError, match="only prefills"):
        engine.submit(
            GenerationRequest(
                id="x", prompt=make_prompt([1]), sampling=SamplingParams(), max_tokens=1, background=True
            ),
            Recorder(),
        )
