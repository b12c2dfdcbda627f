"""The disk tier under the engine: what is written, what comes back after a restart, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from anchorline.cache.classes import CallClass
from anchorline.cache.disk import MIN_LOAD_SECONDS, REST_SECONDS
from anchorline.cache.prompt import Prompt
from anchorline.disk.record import RecordKind
from anchorline.engine.commands import PreviewCall
from anchorline.engine.request import CallReport, GenerationRequest, MissReason, PlanKind
from anchorline.llama.interface import MemoryKind, SamplingParams
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply
from tests.support.memory_store import Files, MemoryStore

HEAD = [1, 2, 3, 4] * 10
TURN = [*HEAD, *[5, 6, 7] * 8]
LONGER = [*TURN, 9, 9, 9]

KINDS = [MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT]


def first_turn() -> Prompt:
    return make_prompt([*TURN, 8], head=len(HEAD), ends=(len(TURN),), pin=True)


def next_turn() -> Prompt:
    return make_prompt(LONGER, head=len(HEAD), ends=(len(TURN),), pin=True)


@dataclass(frozen=True)
class Process:
    """A server over files, driven step by step."""

    harness: Harness
    store: MemoryStore

    def open(self, prompt: Prompt) -> Recorder:
        return self.harness.open(prompt)[1]

    def report(self, prompt: Prompt) -> CallReport:
        return self.harness.report(prompt)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.harness.loop.step()


def start(
    files: Files,
    kind: MemoryKind = MemoryKind.PLAIN,
    *,
    exact: bool = False,
    cache_bytes: int = 1 << 20,
    indexed: bool = True,
) -> Process:
    """A process over ``files``, that has read its index unless told otherwise."""
    harness = Harness(FakeRuntime(kind=kind), files=files, exact=exact, cache_bytes=cache_bytes, resident_idle=0)
    if indexed:
        harness.run()
    assert harness.store is not None
    return Process(harness, harness.store)


def left_by_a_turn(kind: MemoryKind = MemoryKind.PLAIN, *, exact: bool = False) -> Files:
    """What is on disk after one call."""
    files = Files()
    start(files, kind, exact=exact).report(first_turn())
    return files


# -- after a restart ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [False, True])
def test_only_the_delta_is_prefilled(kind: MemoryKind, exact: bool) -> None:
    process = start(left_by_a_turn(kind, exact=exact), kind, exact=exact)
    recorder = process.harness.ask(next_turn())
    report = recorder.report
    assert report is not None
    assert report.plan is PlanKind.RESTORE
    assert report.disk_tokens == report.restored_tokens == len(TURN)
    assert recorder.tokens[0] == expected_reply(LONGER, 4, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_preview_tells_what_would_be_read(kind: MemoryKind) -> None:
    process = start(left_by_a_turn(kind), kind)
    request = GenerationRequest(id="preview", prompt=next_turn(), sampling=SamplingParams(), max_tokens=1)
    told = PreviewCall(request=request).perform(process.harness.loop).report
    assert told.disk_tokens == told.host_tokens == len(TURN)
    assert process.report(next_turn()).disk_tokens == len(TURN)


def test_a_call_is_answered_before_the_index_is_there() -> None:
    process = start(left_by_a_turn(), indexed=False)
    recorder = process.open(next_turn())
    process.step(20)
    assert recorder.report is not None
    assert recorder.report.plan is PlanKind.COLD
    process.harness.run()
    assert process.report(next_turn()).prefilled_tokens == 1


def test_what_one_call_read_is_in_the_host_tier_for_the_next() -> None:
    process = start(left_by_a_turn())
    process.report(next_turn())
    read = len(process.store.reads)
    report = process.report(make_prompt([*TURN, 4, 4], head=len(HEAD), pin=True))
    assert (report.host_tokens, report.disk_tokens) == (len(TURN), 0)
    assert len(process.store.reads) == read


def test_rows_of_which_a_prompt_shares_the_beginning_are_read_whole_and_used_so_far() -> None:
    process = start(left_by_a_turn())
    parting = [*TURN[:-5], 9, 9, 9, 9, 9]
    recorder = process.harness.ask(make_prompt(parting, head=len(HEAD), pin=True))
    assert recorder.report is not None
    assert recorder.report.disk_tokens == len(TURN) - 5
    assert recorder.tokens[0] == expected_reply(parting, 4)


# -- while a call waits ---------------------------------------------------------------------------


def test_other_calls_go_on_while_one_waits_for_the_disk() -> None:
    process = start(left_by_a_turn())
    waiting = process.open(next_turn())
    other = process.open(make_prompt([2] * 30))
    process.step(10)
    assert other.has_ended
    assert not waiting.sampled
    assert not process.harness.loop.has_work, "the loop would spin while it waits"
    process.harness.run()
    report = waiting.report
    assert report is not None
    assert report.load_seconds > 0
    assert report.disk_tokens == len(TURN)


def test_two_calls_that_need_the_same_rows_wait_for_one_read() -> None:
    process = start(left_by_a_turn())
    recorders = [process.open(make_prompt([*LONGER, own], head=len(HEAD), pin=True)) for own in (5, 6)]
    process.harness.run()
    assert len(process.store.reads) == len(set(process.store.reads))
    assert [recorder.report.disk_tokens for recorder in recorders if recorder.report] == [len(TURN), 0]


def test_a_call_that_leaves_while_it_waits_leaves_what_is_read_to_others() -> None:
    process = start(left_by_a_turn())
    call, _ = process.harness.open(next_turn())
    process.step()
    process.harness.loop.cancel(call)
    process.harness.run()
    assert process.harness.cache is not None
    assert not any(node.leases for node in process.harness.cache.tree)
    assert process.report(next_turn()).host_tokens == len(TURN)


def test_a_slow_disk_loses_to_prefill() -> None:
    process = start(left_by_a_turn())
    process.store.read_seconds_per_byte = 1.0
    report = process.report(next_turn())
    assert (report.restored_tokens, report.miss) == (0, MissReason.CHEAPER)
    assert not process.store.reads


def test_what_was_read_is_held_no_longer_than_until_the_call_starts() -> None:
    process = start(left_by_a_turn())
    process.harness.open(next_turn(), max_tokens=30)
    process.step()
    cache = process.harness.cache
    assert cache is not None
    assert any(node.leases for node in cache.tree)
    process.harness.hear()
    process.step()
    assert process.harness.loop.running
    assert not any(node.leases for node in cache.tree)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_disk_that_hangs_is_given_up_and_its_late_answer_harms_nothing(kind: MemoryKind, fails: bool) -> None:
    process = start(left_by_a_turn(kind), kind)
    cache = process.harness.cache
    assert cache is not None
    process.store.faults.read = float(fails)
    waiting = process.open(next_turn())
    process.step()
    lent_bytes = cache.arena.used_bytes
    assert lent_bytes
    process.harness.clock.seconds += MIN_LOAD_SECONDS
    process.step()
    assert cache.arena.used_bytes == lent_bytes, "the store may still write to it"
    process.step(20)
    report = waiting.report
    assert report is not None
    assert (report.plan, report.disk_tokens) == (PlanKind.COLD, 0)
    assert waiting.tokens[0] == expected_reply(LONGER, 4, kind=kind)
    used_bytes = cache.arena.used_bytes
    process.harness.hear()
    assert used_bytes - cache.arena.used_bytes == lent_bytes
    process.harness.run()
    assert not any(node.leases for node in cache.tree)


def test_after_a_disk_has_hung_it_is_left_alone_for_a_while() -> None:
    files = left_by_a_turn()
    first, second = ([token] * 40 for token in (6, 7))
    for ids in (first, second):
        start(files).report(make_prompt([*ids, 8], ends=(len(ids),), pin=True))
    process = start(files)
    process.open(next_turn())
    process.step()
    process.harness.clock.seconds += MIN_LOAD_SECONDS
    process.step()
    process.harness.run()
    assert process.report(make_prompt([*first, 9, 9], ends=(len(first),))).disk_tokens == 0
    process.harness.clock.seconds += REST_SECONDS
    assert process.report(make_prompt([*second, 9, 9], ends=(len(second),))).disk_tokens == len(second)
    cache = process.harness.cache
    assert cache is not None
    assert cache.disk is not None
    assert (cache.disk.stats().loads, cache.disk.stats().given_up_loads) == (2, 1)


# -- room -----------------------------------------------------------------------------------------


def test_what_has_no_room_is_read_as_far_as_it_fits() -> None:
    files = left_by_a_turn()
    process = start(files, cache_bytes=12 * len(HEAD) + 64)
    report = process.report(next_turn())
    assert report.disk_tokens == report.restored_tokens == len(HEAD)


def test_a_state_that_has_no_room_is_an_earlier_one() -> None:
    process = start(left_by_a_turn(MemoryKind.HYBRID), MemoryKind.HYBRID, cache_bytes=12 * len(HEAD) + 128)
    report = process.report(next_turn())
    assert report.disk_tokens == report.restored_tokens == len(HEAD)
    assert process.report(next_turn()).restored_tokens == len(HEAD)


def test_without_any_room_the_call_is_prefilled() -> None:
    process = start(left_by_a_turn(), cache_bytes=256)
    report = process.report(next_turn())
    assert (report.restored_tokens, report.miss) == (0, MissReason.EVICTED)
    assert not process.store.reads


def test_evicted_rows_come_back_from_disk() -> None:
    process = start(left_by_a_turn(), cache_bytes=12 * len(LONGER) + 256)
    for own in (6, 7, 8, 9):
        process.report(make_prompt([own] * 60, head=50, pin=False))
    report = process.report(next_turn())
    assert report.disk_tokens == len(TURN)


# -- faults ---------------------------------------------------------------------------------------


LOSSES = [
    *((kind, RecordKind.ROWS, end) for kind in KINDS for end in (len(HEAD), len(TURN))),
    *((kind, RecordKind.STATE, len(TURN)) for kind in KINDS[1:]),
]


@pytest.mark.parametrize(("kind", "record_kind", "end"), LOSSES)
def test_what_cannot_be_read_is_prefilled(kind: MemoryKind, record_kind: RecordKind, end: int) -> None:
    files = left_by_a_turn(kind)
    process = start(files, kind)
    records = [record for record, _ in files.kept.values() if record.kind is record_kind]
    (lost,) = (record.key for record in records if record.end == end or record.start < end < record.end)
    del files.kept[lost]
    recorder = process.harness.ask(next_turn())
    assert recorder.tokens[0] == expected_reply(LONGER, 4, kind=kind)
    assert recorder.report is not None
    assert recorder.report.restored_tokens < len(TURN)
    # What was prefilled is there again, for this process and for the next.
    assert process.report(next_turn()).restored_tokens >= len(TURN)
    assert start(files, kind).report(next_turn()).restored_tokens >= len(TURN)


def test_rows_whose_parent_went_while_they_were_read_are_left_out() -> None:
    process = start(left_by_a_turn())
    process.report(make_prompt([*HEAD, 7], head=len(HEAD), pin=True))
    recorder = process.open(next_turn())
    process.step()
    cache = process.harness.cache
    assert cache is not None
    (head,) = cache.match(next_turn(), next_turn().tokens).chain
    cache.reject(head)
    process.harness.hear()
    assert not cache.tree.kept
    process.harness.run()
    assert recorder.tokens[0] == expected_reply(LONGER, 4)


def test_a_full_queue_leaves_out_what_the_next_turn_writes() -> None:
    files = Files()
    process = start(files)
    process.store.faults.full = 1.0
    process.report(first_turn())
    assert not files.kept
    process.store.faults.full = 0.0
    process.report(next_turn())
    assert start(files).report(next_turn()).prefilled_tokens == 1


# -- what is written ------------------------------------------------------------------------------


def test_nothing_waits_for_a_write() -> None:
    process = start(Files())
    recorder = process.open(first_turn())
    process.step(30)
    assert recorder.has_ended
    assert not process.harness.loop.has_work
    assert process.store.jobs, "it is still to be written"


def test_what_is_being_written_is_not_given_up_for_others() -> None:
    """It would free nothing before it is written."""
    process = start(Files(), cache_bytes=12 * 80)
    written = make_prompt([5] * 50, ends=(50,), pin=True)
    other = make_prompt([6] * 50, ends=(50,), pin=True)
    for prompt in (written, other):
        process.harness.open(prompt, max_tokens=1)
        process.step(20)
    cache = process.harness.cache
    assert cache is not None
    assert cache.match(written, written.tokens).restorable == 50
    assert cache.counters.evictions == 0
    process.harness.run()
    process.report(other)
    assert cache.match(other, other.tokens).restorable == 50


def test_side_calls_and_guesses_are_not_written() -> None:
    process = start(Files())
    side = make_prompt([7] * 20, ends=(20,))
    assert process.report(side).call_class is CallClass.SIDE
    process.harness.seal([3] * 30)
    process.harness.run()
    assert not process.store.writes


def test_a_guess_that_turned_out_right_is_written_with_the_call_that_uses_it() -> None:
    files = Files()
    process = start(files)
    process.harness.seal(TURN, head=len(HEAD))
    process.harness.run()
    process.report(next_turn())
    assert start(files).report(next_turn()).prefilled_tokens == 1


def test_each_turn_writes_its_own_span() -> None:
    process = start(Files())
    ids = [*HEAD]
    for turn in range(5):
        recorder = process.harness.ask(make_prompt([*ids, *[turn] * 10], head=len(HEAD), pin=True))
        ids = [*ids, *[turn] * 10, *recorder.tokens[0]]
    records = [record for record, _ in process.store.files.kept.values()]
    spans = sorted((record.start, record.end) for record in records)
    assert (spans[0][0], spans[-1][1]) == (0, len(ids))
    assert all(before[1] == after[0] for before, after in pairwise(spans))


def test_merged_rows_stay_in_the_host_tier_and_the_turns_come_back() -> None:
    files = Files()
    process = start(files)
    ids = [*HEAD]
    for turn in range(12):
        ids = [*ids, *[5 + turn] * 10]
        process.report(make_prompt(ids, head=len(HEAD), ends=(len(ids),), pin=True))
    assert process.harness.cache is not None
    assert process.harness.cache.counters.merged_segments
    recorder = start(files).harness.ask(make_prompt([*ids, 4], head=len(HEAD), pin=True))
    assert recorder.report is not None
    assert recorder.report.disk_tokens == len(ids)
    assert recorder.tokens[0] == expected_reply([*ids, 4], 4)


def test_pinned_records_are_known_to_the_store() -> None:
    process = start(Files())
    process.report(first_turn())
    pinned = [record for record, _ in process.store.files.kept.values() if record.key in process.store.pinned]
    assert [(record.start, record.end) for record in pinned] == [(0, len(HEAD))]


def test_what_is_used_is_noted() -> None:
    process = start(left_by_a_turn())
    process.report(next_turn())
    assert set(process.store.used_keys) >= set(process.store.reads)


# -- what is deleted ------------------------------------------------------------------------------


def test_clearing_deletes_files_and_those_that_are_found_later() -> None:
    files = left_by_a_turn()
    process = start(files, indexed=False)
    assert process.harness.cache is not None
    process.harness.cache.clear("")
    process.harness.run()
    assert not files.kept
    process.report(first_turn())
    for pin in process.harness.cache.pins.of(""):
        process.harness.cache.pins.remove(pin)
    process.harness.cache.clear("")
    process.harness.run()
    assert not files.kept


@pytest.mark.parametrize("kind", [MemoryKind.PLAIN, MemoryKind.HYBRID])
def test_clearing_leaves_on_disk_what_a_pin_goes_on_from(kind: MemoryKind) -> None:
    files = Files()
    process = start(files, kind)
    process.report(make_prompt(HEAD[:20]))
    process.report(make_prompt([*HEAD, 8], head=len(HEAD), pin=True))
    assert process.harness.cache is not None
    process.harness.cache.clear("")
    process.harness.run()
    assert start(files, kind).report(first_turn()).disk_tokens == len(HEAD)


def test_states_that_are_not_worth_keeping_are_deleted() -> None:
    process = start(Files(), MemoryKind.HYBRID)
    ids = [*HEAD]
    for turn in range(8):
        ids = [*ids, *[5 + turn] * 10]
        process.report(make_prompt([*ids, 8], head=len(HEAD), ends=(len(ids),), pin=True))
    process.harness.run()
    states = [record for record, _ in process.store.files.kept.values() if record.kind is RecordKind.STATE]
    assert len(states) <= 5
