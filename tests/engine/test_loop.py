"""The loop over the fake runtime: plans, forks, room, cancellation; answers are always the fake's own."""

from __future__ import annotations

import pytest

from anchorline.engine.request import FinishReason, MissReason, PlanKind
from anchorline.errors import Cancelled
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, Faults, expected_reply

HEAD = [1, 2, 3, 4, 5, 6, 7, 8] * 5
FIRST = [*HEAD, 10, 11, 12]
OTHER = [30, 31, 32, 33, 34, 35]


def check_reply(recorder: Recorder, prompt: list[int], max_tokens: int = 4, choice: int = 0, salt: int = 0) -> None:
    assert recorder.error is None
    assert recorder.tokens.get(choice, []) == expected_reply(prompt, max_tokens, salt=salt)


def test_cold_then_the_same_prompt_prefills_one_token() -> None:
    harness = Harness(FakeRuntime())
    check_reply(harness.ask(make_prompt(FIRST)), FIRST)
    again = harness.ask(make_prompt(FIRST))
    check_reply(again, FIRST)
    assert again.report is not None
    assert again.report.plan is PlanKind.CONTINUE
    assert again.report.prefilled_tokens == 1


def test_next_turn_prefills_only_the_new_message() -> None:
    harness = Harness(FakeRuntime())
    harness.ask(make_prompt(FIRST))
    reply = expected_reply(FIRST, 4)
    turn = [*FIRST, *reply[:2], reply[2] + 1, 21, 22]
    report = harness.report(make_prompt(turn))
    assert report.prefilled_tokens == 3
    assert report.miss is None


def test_host_tier_restores_what_left_the_pool() -> None:
    harness = Harness(FakeRuntime(), resident_idle=0)
    harness.ask(make_prompt(FIRST, head=len(HEAD)))
    turn = [*FIRST, 20, 21]
    recorder = harness.ask(make_prompt(turn, head=len(HEAD)))
    check_reply(recorder, turn)
    assert recorder.report is not None
    assert recorder.report.plan is PlanKind.RESTORE
    assert recorder.report.host_tokens == len(FIRST)
    assert recorder.report.resident_tokens == 0


def test_resident_head_is_forked_and_the_rest_comes_from_the_host() -> None:
    harness = Harness(FakeRuntime(), resident_idle=1)
    long_turn = [*HEAD, *range(10, 30)]
    harness.ask(make_prompt(long_turn, head=len(HEAD)))
    harness.ask(make_prompt([*HEAD, *OTHER * 3], head=len(HEAD)))
    recorder = harness.ask(make_prompt([*long_turn, 40], head=len(HEAD)))
    check_reply(recorder, [*long_turn, 40])
    assert recorder.report is not None
    assert recorder.report.resident_tokens == len(HEAD)
    assert recorder.report.host_tokens == len(long_turn) - len(HEAD)
    assert recorder.report.prefilled_tokens == 1


def test_disjoint_side_call_leaves_the_conversation_resident() -> None:
    harness = Harness(FakeRuntime(), resident_idle=2)
    harness.ask(make_prompt(FIRST))
    check_reply(harness.ask(make_prompt(OTHER)), OTHER)
    assert harness.report(make_prompt([*FIRST, 20])).plan is PlanKind.CONTINUE


def test_choices_share_one_prefill_and_have_their_own_seeds() -> None:
    runtime = FakeRuntime()
    harness = Harness(runtime)
    _, recorder = harness.open(make_prompt(FIRST), choices=3, seed=7)
    harness.run()
    for choice in range(3):
        check_reply(recorder, FIRST, choice=choice, salt=7 + choice)
    generated = sum(len(tokens) for tokens in recorder.tokens.values())
    assert runtime.decoded_tokens <= len(FIRST) + 2 + generated


def test_choices_share_one_prefill_without_a_cache_too() -> None:
    runtime = FakeRuntime()
    harness = Harness(runtime, cache_bytes=None)
    _, recorder = harness.open(make_prompt(FIRST), choices=2)
    harness.run()
    check_reply(recorder, FIRST, choice=1)
    assert runtime.decoded_tokens < 2 * len(FIRST)
    assert runtime.used_cells == 0


def test_without_a_cache_nothing_is_restored_or_kept() -> None:
    harness = Harness(FakeRuntime(), cache_bytes=None)
    harness.ask(make_prompt(FIRST))
    report = harness.report(make_prompt(FIRST))
    assert report.plan is PlanKind.COLD
    assert report.prefilled_tokens == len(FIRST)


def test_a_request_that_refuses_the_cache_neither_restores_nor_saves() -> None:
    harness = Harness(FakeRuntime())
    harness.ask(make_prompt(FIRST), use_cache=False)
    assert harness.report(make_prompt(FIRST)).plan is PlanKind.COLD
    refused = harness.ask(make_prompt(FIRST), use_cache=False).report
    assert refused is not None
    assert refused.restored_tokens == 0
    assert refused.miss is MissReason.OFF
    assert refused.seen_tokens == len(FIRST)


def test_a_request_that_refuses_the_cache_misses_nothing_where_nothing_is_kept() -> None:
    harness = Harness(FakeRuntime())
    harness.ask(make_prompt(OTHER), use_cache=False)
    refused = harness.ask(make_prompt(OTHER), use_cache=False).report
    assert refused is not None
    assert refused.miss is None


def test_streams_share_steps_and_a_long_prefill_pauses_others_for_one_chunk() -> None:
    runtime = FakeRuntime(context_tokens=2000)
    harness = Harness(runtime)
    _, short = harness.open(make_prompt(OTHER), max_tokens=30)
    harness.loop.step()
    long_prompt = list(range(40)) * 20
    harness.open(make_prompt(long_prompt))
    while not short.has_ended:
        before = len(short.sampled)
        harness.loop.step()
        assert short.has_ended or len(short.sampled) == before + 1
        assert runtime.batch.size <= 1 + runtime.limits.ubatch_tokens
    harness.run()
    check_reply(short, OTHER, 30)


def test_full_pool_preempts_the_youngest_and_it_ends_with_the_same_answer() -> None:
    runtime = FakeRuntime(context_tokens=100)
    harness = Harness(runtime, parallel=3)
    prompts = [[seed, *range(30)] for seed in (41, 42, 43)]
    opened = [harness.open(make_prompt(ids), max_tokens=60)[1] for ids in prompts]
    harness.run()
    for ids, recorder in zip(prompts, opened, strict=True):
        check_reply(recorder, ids, 60)
    lengths = [len(expected_reply(ids, 60)) + 31 for ids in prompts]
    if sum(lengths) > 100:
        assert harness.loop.preemptions > 0


def test_context_end_finishes_with_length() -> None:
    harness = Harness(FakeRuntime(context_tokens=50))
    prompt = next([s, *range(40)] for s in range(40) if len(expected_reply([s, *range(40)], 9)) == 9)
    recorder = harness.ask(make_prompt(prompt), max_tokens=1000)
    assert recorder.finishes == {0: FinishReason.LENGTH}
    assert len(recorder.tokens[0]) == 50 - len(prompt)


def test_consumer_stops_a_choice() -> None:
    harness = Harness(FakeRuntime())
    _, recorder = harness.open(make_prompt(FIRST), max_tokens=20, recorder=Recorder(stop_after=2))
    harness.run()
    assert recorder.finishes == {0: FinishReason.STOP}
    assert len(recorder.tokens[0]) == 2


def test_cancelled_prefill_keeps_its_progress() -> None:
    runtime = FakeRuntime(context_tokens=1000)
    harness = Harness(runtime)
    ids = list(range(45)) * 10
    call, recorder = harness.open(make_prompt(ids))
    for _ in range(5):
        harness.loop.step()
    done = runtime.decoded_tokens
    assert 0 < done < len(ids)
    harness.loop.cancel(call)
    assert isinstance(recorder.error, Cancelled)
    assert recorder.report is not None
    assert (recorder.report.prefilled_tokens, recorder.report.generated_tokens) == (done, 0)
    harness.run()
    retry = harness.ask(make_prompt(ids))
    check_reply(retry, ids)
    assert retry.report is not None
    assert retry.report.restored_tokens == done


def test_cancelling_a_waiting_call_frees_nothing_else() -> None:
    harness = Harness(FakeRuntime(), parallel=1)
    _, first = harness.open(make_prompt(FIRST), max_tokens=20)
    harness.loop.step()
    call, second = harness.open(make_prompt(OTHER))
    harness.loop.cancel(call)
    harness.run()
    assert isinstance(second.error, Cancelled)
    assert second.report is None
    check_reply(first, FIRST, 20)


def test_a_call_cancelled_in_mid_reply_reports_what_it_did() -> None:
    harness = Harness(FakeRuntime())
    harness.ask(make_prompt(FIRST), max_tokens=1)
    call, recorder = harness.open(make_prompt([*FIRST, 40, 41]), max_tokens=20)
    while len(recorder.sampled) < 3:
        harness.loop.step()
    harness.loop.cancel(call)
    report = recorder.report
    assert report is not None
    assert report.restored_tokens == len(FIRST)
    assert (report.prefilled_tokens, report.generated_tokens) == (2, 3)


def test_refused_import_recomputes_and_says_so() -> None:
    runtime = FakeRuntime(faults=Faults(import_=1.0))
    harness = Harness(runtime, resident_idle=0)
    harness.ask(make_prompt(FIRST))
    recorder = harness.ask(make_prompt(FIRST))
    check_reply(recorder, FIRST)
    assert recorder.report is not None
    assert recorder.report.plan is PlanKind.COLD
    assert recorder.report.miss is MissReason.FAILED
    assert harness.cache is not None
    assert harness.cache.counters.restore_failures == 1


def test_failed_export_is_a_counted_miss_later() -> None:
    runtime = FakeRuntime(faults=Faults(export=1.0))
    harness = Harness(runtime, resident_idle=0)
    harness.ask(make_prompt(FIRST))
    assert harness.cache is not None
    assert harness.cache.counters.unsaved == {"export_failed": 1}
    assert harness.cache.arena.used_bytes == 0
    report = harness.report(make_prompt(FIRST))
    assert report.miss is MissReason.UNSAVED
    assert report.seen_tokens == len(FIRST)


def test_failed_decode_fails_the_calls_in_it_and_the_next_one_works() -> None:
    runtime = FakeRuntime(faults=Faults(decode=1.0))
    harness = Harness(runtime)
    recorder = harness.ask(make_prompt(FIRST))
    assert recorder.error is not None
    runtime.faults.decode = 0.0
    assert runtime.used_cells == 0
    check_reply(harness.ask(make_prompt(FIRST)), FIRST)


@pytest.mark.parametrize("budget_tokens", [10, 60])
def test_budget_is_never_exceeded_and_evictions_are_explained(budget_tokens: int) -> None:
    harness = Harness(FakeRuntime(), cache_bytes=budget_tokens * 64, resident_idle=0)
    assert harness.cache is not None
    for seed in range(12):
        ids = [seed, *FIRST]
        check_reply(harness.ask(make_prompt(ids)), ids)
        assert harness.cache.arena.used_bytes <= budget_tokens * 64
    report = harness.report(make_prompt([0, *FIRST]))
    assert report.miss in (MissReason.EVICTED, MissReason.UNSAVED)


def test_who_was_preempted_waits_for_room_though_the_hold_of_another_is_over() -> None:
    """Otherwise it would take, in each step, the cells that the others need for their next token."""
    harness = Harness(FakeRuntime(context_tokens=370, sequences=4), step_seconds=0.1)
    shared = [position * 7 % 40 for position in range(150)]
    prompts = [[*shared, 41], [42, *range(30)], [*shared, 43], [43, *range(49)] * 3]
    opened = [harness.open(make_prompt(ids), max_tokens=60)[1] for ids in prompts[:3]]
    harness.loop.step()
    assert [stream.hold is not None for stream in harness.loop.waiting] == [True]
    opened.append(harness.open(make_prompt(prompts[3]), max_tokens=60)[1])
    harness.run()
    assert harness.loop.preemptions > 0
    for ids, recorder in zip(prompts, opened, strict=True):
        check_reply(recorder, ids, 60)
