"""Which idle sequences stay live while a call runs, and that those that leave come back without a prefill."""

from __future__ import annotations

from itertools import count

import pytest

from anchorline.cache.prompt import Prompt
from anchorline.config import EngineConfig, ModelConfig
from anchorline.engine.caches import make_cache
from anchorline.engine.idle import DropReason
from anchorline.engine.live import LiveSequence
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import CallReport, GenerationRequest, PlanKind, SampledToken
from anchorline.engine.stream import open_call
from anchorline.llama.interface import MemoryKind, SamplingParams
from anchorline.llama.model import Model, load_model
from tests.engine.exact import conversation
from tests.engine.harness import Harness, Ticker, make_cells_dear, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import CELL_BYTES, FakeRuntime, expected_reply
from tests.support.runtimes import make_runtime, random_tokens

HEAD = 20
FIRST = [*range(HEAD), *(n * 7 % 40 for n in range(180))]
OTHER = [n * 3 % 40 for n in range(5, 205)]
MORE = [40, 41, 42]

kinds = pytest.mark.parametrize("kind", [MemoryKind.PLAIN, MemoryKind.WINDOWED, MemoryKind.HYBRID])


def make(kind: MemoryKind = MemoryKind.PLAIN, *, cache_bytes: int = 1 << 20, dear: bool = True) -> Harness:
    runtime = FakeRuntime(context_tokens=2000, sequences=6, kind=kind)
    harness = Harness(runtime, resident_idle=3, cache_bytes=cache_bytes)
    if dear:
        make_cells_dear(harness.loop.meter)
    return harness


def goes_on(kind: MemoryKind, ids: list[int]) -> Prompt:
    return make_prompt([*ids, *expected_reply(ids, 4, kind=kind), *MORE], head=HEAD)


def crowding(harness: Harness) -> int:
    return harness.loop.idle.dropped[DropReason.CROWDING]


@kinds
def test_a_long_prefill_drops_an_idle_sequence_that_comes_back_whole(kind: MemoryKind) -> None:
    reports = []
    for dear in (False, True):
        harness = make(kind, dear=dear)
        harness.ask(make_prompt(FIRST, head=HEAD))
        harness.ask(make_prompt(OTHER, head=HEAD))
        assert crowding(harness) == dear
        recorder = harness.ask(goes_on(kind, FIRST))
        assert recorder.tokens[0] == expected_reply(goes_on(kind, FIRST).tokens.tolist(), 4, kind=kind)
        assert recorder.report is not None
        reports.append(recorder.report)
    stayed, left = reports
    assert (stayed.plan, left.plan) == (PlanKind.CONTINUE, PlanKind.RESTORE)
    assert left.prefilled_tokens == stayed.prefilled_tokens
    assert left.restored_tokens == left.host_tokens == stayed.resident_tokens


@kinds
def test_a_short_prefill_drops_nothing(kind: MemoryKind) -> None:
    harness = make(kind, dear=False)
    make_cells_dear(harness.loop.meter, seconds_per_token_cell=1e-7)
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER[:50], head=HEAD))
    assert crowding(harness) == 0


@kinds
def test_what_a_call_goes_on_from_stays(kind: MemoryKind) -> None:
    harness = make(kind)
    harness.ask(make_prompt(FIRST, head=HEAD))
    longer = make_prompt([*FIRST, *expected_reply(FIRST, 4, kind=kind), *OTHER], head=HEAD)
    assert harness.report(longer).plan is PlanKind.CONTINUE
    assert crowding(harness) == 0


def test_what_a_call_forks_leaves_and_the_shared_cells_stay() -> None:
    """A few tokens in common, as those of two templates' beginnings, are no reason to carry all the rest."""
    harness = make()
    long = FIRST * 3
    harness.ask(make_prompt(long, head=HEAD))
    forking = [*FIRST[:HEAD], *OTHER]
    recorder = harness.ask(make_prompt(forking, head=HEAD))
    assert recorder.report is not None
    assert (recorder.report.plan, recorder.report.resident_tokens) == (PlanKind.FORK, HEAD)
    assert crowding(harness) == 1
    assert recorder.tokens[0] == expected_reply(forking, 4)
    back = harness.report(goes_on(MemoryKind.PLAIN, long))
    assert back.prefilled_tokens <= len(MORE) + 1


def test_a_fork_with_little_to_prefill_drops_nothing() -> None:
    harness = make(dear=False)
    make_cells_dear(harness.loop.meter, seconds_per_token_cell=1e-7)
    harness.ask(make_prompt(FIRST * 3, head=HEAD))
    assert harness.report(make_prompt([*FIRST[:150], *OTHER[:20]], head=HEAD)).plan is PlanKind.FORK
    assert crowding(harness) == 0


@kinds
def test_what_runs_stays(kind: MemoryKind) -> None:
    harness = make(kind)
    _, running = harness.open(make_prompt(FIRST, head=HEAD), max_tokens=40)
    while not running.sampled:
        harness.loop.step()
    harness.ask(make_prompt(OTHER, head=HEAD))
    assert crowding(harness) == 0
    assert running.tokens[0] == expected_reply(FIRST, 40, kind=kind)


@kinds
@pytest.mark.parametrize("cache_bytes", [1 << 10, 1 << 13], ids=["no room", "room for three"])
def test_what_a_small_host_tier_might_lose_stays(kind: MemoryKind, cache_bytes: int) -> None:
    harness = make(kind, cache_bytes=cache_bytes)
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER, head=HEAD))
    assert crowding(harness) == 0
    assert harness.report(goes_on(kind, FIRST)).plan is PlanKind.CONTINUE


@kinds
def test_what_could_not_be_saved_stays(kind: MemoryKind) -> None:
    harness = make(kind)
    harness.runtime.faults.export = harness.runtime.faults.state = 1.0
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER, head=HEAD))
    assert crowding(harness) == 0
    assert harness.report(goes_on(kind, FIRST)).plan is PlanKind.CONTINUE


@kinds
def test_what_is_still_to_be_saved_is_saved_before_it_leaves(kind: MemoryKind) -> None:
    harness = make(kind)
    _, first = harness.open(make_prompt(FIRST, head=HEAD))
    while not first.has_ended:
        harness.loop.step()
    assert harness.loop.pending_saves
    harness.ask(make_prompt(OTHER, head=HEAD))
    assert crowding(harness) == 1
    assert harness.report(goes_on(kind, FIRST)).prefilled_tokens <= len(MORE) + 1


def test_a_call_made_ahead_of_need_drops_nothing() -> None:
    harness = make()
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.seal(OTHER)
    harness.run()
    assert crowding(harness) == 0


def test_what_leaves_is_counted_by_reason() -> None:
    harness = make(dear=False)
    for start in range(5):
        harness.ask(make_prompt(OTHER[start:]))
    assert harness.loop.idle.dropped == {DropReason.SURPLUS: 1}
    harness.ask(make_prompt([n % 41 for n in range(1990)]))
    assert harness.loop.idle.dropped[DropReason.NO_ROOM] > 0


def tight(
    kind: MemoryKind = MemoryKind.PLAIN,
    *,
    context_tokens: int = 300,
    parallel: int = 2,
    cache_bytes: int = 1 << 10,
) -> Harness:
    """Room for one long sequence and half of another, and a host tier that keeps next to nothing."""
    runtime = FakeRuntime(context_tokens=context_tokens, sequences=parallel + 2, batch_tokens=16, kind=kind)
    return Harness(runtime, parallel=parallel, resident_idle=2, cache_bytes=cache_bytes)


def test_who_makes_room_keeps_its_beginning() -> None:
    harness = tight()
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER[:150], head=HEAD))
    assert not harness.loop.idle.dropped
    back = harness.report(goes_on(MemoryKind.PLAIN, FIRST))
    assert 100 < back.resident_tokens < len(FIRST)


def test_who_is_forked_makes_room_behind_what_the_fork_shares() -> None:
    harness, long = tight(context_tokens=500), FIRST * 2
    harness.ask(make_prompt(long, head=HEAD))
    forking = [*FIRST[:10], *OTHER[:150]]
    recorder = harness.ask(make_prompt(forking, head=HEAD))
    assert recorder.report is not None
    assert (recorder.report.plan, recorder.report.resident_tokens) == (PlanKind.FORK, 10)
    assert recorder.tokens[0] == expected_reply(forking, 4)
    back = harness.report(goes_on(MemoryKind.PLAIN, long))
    assert 300 < back.resident_tokens < len(long)


def test_who_makes_room_is_cut_where_an_import_begins() -> None:
    """What lies behind it fits back only as a whole: 300 cells hold no half of it and all of its rows."""
    harness = tight(cache_bytes=1 << 20)
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER[:150], head=HEAD))
    back = harness.report(goes_on(MemoryKind.PLAIN, FIRST))
    assert (back.plan, back.resident_tokens) == (PlanKind.RESTORE, HEAD)
    assert back.prefilled_tokens <= len(MORE) + 1


def test_who_shares_its_beginning_with_those_that_run_goes_once_nothing_else_is_left() -> None:
    harness = tight(context_tokens=1000, parallel=3)
    _, running = harness.open(make_prompt(FIRST, head=HEAD), max_tokens=40, choices=3, seed=0, recorder=FirstStops())
    while not harness.loop.pool.idle():
        harness.loop.step()
    (idle,) = harness.loop.pool.idle()
    assert harness.loop.pool.common_tokens(idle) == len(FIRST)
    cells = harness.loop.pool.used_cells
    assert cells == harness.runtime.used_cells
    harness.loop.idle.shorten(idle, 100)
    assert harness.loop.idle.dropped == {DropReason.NO_ROOM: 1}
    assert harness.loop.pool.used_cells == harness.runtime.used_cells < cells
    harness.run()
    assert running.tokens[1] == expected_reply(FIRST, 40, salt=1)


def test_cells_that_a_running_stream_shares_are_no_room_for_who_goes_on_from_them() -> None:
    """Behind 150 tokens there are 51 to give up, but 50 of them stay those of the choice that runs."""
    harness = tight(context_tokens=250)
    _, running = harness.open(make_prompt(FIRST, head=HEAD), max_tokens=60, choices=2, seed=0, recorder=FirstStops())
    while not harness.loop.pool.idle():
        harness.loop.step()
    own = [n * 11 % 40 for n in range(harness.loop.pool.free_cells + 10)]
    _, waiting = harness.open(make_prompt([*FIRST[:150], *own], head=HEAD), max_tokens=1)
    harness.run()
    assert harness.loop.preemptions == 0
    assert waiting.tokens[0] == expected_reply([*FIRST[:150], *own], 1)
    assert running.tokens[1] == expected_reply(FIRST, 60, salt=1)


class FirstStops(Recorder):
    """Wants no more than a few tokens of the first choice."""

    def on_token(self, choice: int, token: SampledToken) -> bool:
        return super().on_token(choice, token) or (choice == 0 and len(self.tokens[0]) == 5)


def test_what_a_fork_shares_stays_although_the_import_begins_before_it() -> None:
    harness, long = tight(context_tokens=750, cache_bytes=1 << 20), FIRST * 3
    harness.ask(make_prompt(long, head=HEAD))
    forking = [*FIRST[:150], *OTHER[:150]]
    recorder = harness.ask(make_prompt(forking, head=HEAD))
    assert recorder.report is not None
    assert (recorder.report.plan, recorder.report.resident_tokens) == (PlanKind.FORK, 150)
    assert recorder.tokens[0] == expected_reply(forking, 4)
    assert harness.loop.idle.shortened == 1
    back = harness.report(goes_on(MemoryKind.PLAIN, long))
    assert (back.plan, back.resident_tokens) == (PlanKind.RESTORE, 150)
    assert back.prefilled_tokens <= len(MORE) + 1


@pytest.mark.parametrize("kind", [MemoryKind.WINDOWED, MemoryKind.HYBRID])
def test_who_cannot_be_trimmed_makes_room_as_a_whole(kind: MemoryKind) -> None:
    harness = tight(kind)
    harness.ask(make_prompt(FIRST, head=HEAD))
    harness.ask(make_prompt(OTHER[:150], head=HEAD))
    assert harness.loop.idle.dropped == {DropReason.NO_ROOM: 1}
    assert harness.loop.idle.shortened == 0


def test_a_full_pool_takes_no_more_than_a_batch_from_who_is_idle() -> None:
    harness = tight()
    harness.ask(make_prompt(FIRST, head=HEAD))
    (idle,) = harness.loop.pool.idle()
    _, running = harness.open(make_prompt(OTHER[:94], head=HEAD), max_tokens=20)
    while not running.has_ended:
        harness.loop.step()
    assert harness.loop.preemptions == 0
    assert not harness.loop.idle.dropped
    assert running.tokens[0] == expected_reply(OTHER[:94], 20)
    assert idle.length == len(FIRST) + 3 - harness.runtime.limits.batch_tokens * harness.loop.idle.shortened
    assert harness.loop.idle.shortened > 0


@pytest.mark.parametrize("kind", [MemoryKind.WINDOWED, MemoryKind.HYBRID])
def test_a_full_pool_takes_all_that_cannot_be_trimmed(kind: MemoryKind) -> None:
    harness = tight(kind)
    harness.ask(make_prompt(FIRST[:95], head=HEAD))
    harness.ask(make_prompt(OTHER[:80]))
    _, running = harness.open(make_prompt(OTHER[81:186]), max_tokens=30)
    while not running.has_ended:
        harness.loop.step()
    assert harness.loop.preemptions == 0
    assert harness.loop.idle.dropped == {DropReason.NO_ROOM: 2}


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_a_real_conversation_comes_back_with_as_little_to_prefill(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        stayed, left = (_there_and_back(model, dear=dear) for dear in (False, True))
    finally:
        model.close()
    assert (stayed.plan, left.plan) == (PlanKind.CONTINUE, PlanKind.RESTORE)
    assert left.prefilled_tokens == stayed.prefilled_tokens == 40


def _there_and_back(model: Model, *, dear: bool) -> CallReport:
    """The report of a conversation's second turn, when another call has come between."""
    runtime = make_runtime(model, sequences=4)
    try:
        config, clock, ids = EngineConfig(parallel=2, resident_idle=2, cache_ram_bytes=64 << 20), Ticker(0.1), count()
        loop = EngineLoop(runtime, config, make_cache(config, runtime, clock), clock)
        if dear:
            make_cells_dear(loop.meter)

        def ask(prompt: Prompt) -> CallReport:
            request = GenerationRequest(
                id=str(next(ids)), prompt=prompt, sampling=SamplingParams(), max_tokens=1, received_seconds=clock()
            )
            recorder = Recorder()
            loop.open(open_call(request, recorder, context_tokens=runtime.limits.context_tokens))
            while loop.has_work:
                loop.step()
            assert recorder.report is not None
            return recorder.report

        first, second = conversation(1, 500, 100, 40)
        ask(first)
        ask(make_prompt(random_tokens(500, seed=2).tolist()))
        assert loop.idle.dropped[DropReason.CROWDING] == dear
        return ask(second)
    finally:
        runtime.close()


def spacious(*, spare: int, cache_bytes: int = 1, resident_idle: int = 1) -> Harness:
    """Cells for several conversations, and so many sequence ids more than were asked for."""
    runtime = FakeRuntime(context_tokens=4000, sequences=2 + resident_idle + spare)
    return Harness(runtime, parallel=2, resident_idle=resident_idle, cache_bytes=cache_bytes, eviction="none")


def long(name: int) -> Prompt:
    return make_prompt([name, *(n * name % 40 for n in range(399))])


def names_of(sequences: list[LiveSequence]) -> list[int]:
    return [int(live.prompt.tokens[0]) for live in sequences]


def test_what_nothing_else_keeps_stays_while_there_are_ids() -> None:
    harness = spacious(spare=2)
    for name in (3, 7, 11, 13, 17):
        harness.ask(long(name))
    assert names_of(harness.loop.pool.idle()) == [7, 11, 13, 17], "three before the last call began"
    assert harness.loop.idle.dropped == {DropReason.SURPLUS: 1}
    assert harness.report(long(11)).prefilled_tokens == 1


def test_what_host_ram_keeps_leaves_beyond_the_limit_before_what_it_does_not() -> None:
    harness = spacious(spare=1, cache_bytes=CELL_BYTES * 500)
    assert harness.cache is not None
    for name in (3, 7, 3, 11, 13):
        harness.ask(long(name))
    kept = {name: harness.cache.match(long(name), long(name).tokens).restorable for name in (3, 7, 11)}
    assert kept[3] == 400
    assert max(kept[7], kept[11]) < 400 - 256
    assert names_of(harness.loop.pool.idle()) == [7, 11, 13]


def test_no_more_stay_than_were_asked_for_while_host_ram_has_much_room() -> None:
    harness = spacious(spare=2, cache_bytes=1 << 20)
    for name in (3, 7, 11):
        harness.ask(long(name))
    assert names_of(harness.loop.pool.idle()) == [7, 11], "one before the last call began"


def test_what_host_ram_may_have_to_push_out_stays() -> None:
    harness = spacious(spare=2, cache_bytes=CELL_BYTES * 1500)
    for name in (3, 7, 11):
        harness.ask(long(name))
    assert names_of(harness.loop.pool.idle()) == [3, 7, 11]


def test_no_more_stay_than_were_asked_for_without_ids_to_spare() -> None:
    harness = spacious(spare=0)
    for name in (3, 7, 11):
        harness.ask(long(name))
    assert names_of(harness.loop.pool.idle()) == [7, 11], "one before the last call began"


def test_who_is_kept_in_host_ram_makes_room_before_who_was_used_longer_ago() -> None:
    harness = spacious(spare=2, cache_bytes=CELL_BYTES * 500, resident_idle=3)
    for name in (3, 7, 11):
        harness.ask(long(name))
    harness.ask(long(3))
    assert names_of(harness.loop.idle.in_order()) == [3, 7, 11], "the one used last comes back from host RAM"


def needed(harness: Harness, prompt: Prompt) -> list[float]:
    assert harness.cache is not None
    return [segment.needed for segment in harness.cache.match(prompt, prompt.tokens).chain]


def test_what_live_sequences_serve_is_not_needed_of_the_host_tier() -> None:
    harness = spacious(spare=0, cache_bytes=1 << 20)
    for _ in range(4):
        harness.ask(long(3))
    assert max(needed(harness, long(3))) < 0.2
    for name in (7, 11):
        harness.ask(long(name))
    assert harness.report(long(3)).plan is PlanKind.RESTORE
    assert min(needed(harness, long(3))) > 0.5
