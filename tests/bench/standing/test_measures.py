"""What follows from samples: ratios within rounds, medians over them, and what no server may do."""

from __future__ import annotations

from dataclasses import replace

from anchorline.bench.standing.measures import Sample, Summary, faults_of, summarise
from anchorline.bench.standing.workloads import Role
from tests.bench.standing.samples import COLD, CONTROL, WARM

PEER = "llama-server"


def slowed(sample: Sample, factor: float, *, round_number: int, server: str = "anchorline") -> Sample:
    assert sample.prefill_ms is not None
    return replace(
        sample,
        round=round_number,
        server=server,
        ttft_ms=sample.ttft_ms * factor,
        prefill_ms=sample.prefill_ms * factor,
    )


def summary(samples: list[Sample], server: str = "anchorline", *, at_cuts: bool = False) -> Summary:
    (found,) = [s for s in summarise(samples, ours="anchorline", at_cuts=at_cuts) if s.server == server]
    return found


def test_one_round() -> None:
    found = summary([COLD, WARM])
    assert (found.rounds, found.calls, found.prompt_tokens, found.prefilled_tokens) == (1, 2, 2070, 1070)
    assert (found.warm_tokens, found.delta_tokens) == (1070, 70)
    assert (found.cold_ms, found.warm_ms, found.cold_to_warm) == (500.0, 20.0, 25.0)
    assert (found.oracle_tokens, found.oracle_ratio) == (1070, 1.0)
    assert (found.warm_to_prefill, found.to_ours) == (1.25, 1.0)


def test_stateful_models_are_held_against_an_oracle_that_resumes_at_cuts() -> None:
    found = summary([COLD, WARM], at_cuts=True)
    assert (found.oracle_tokens, found.oracle_ratio) == (1080, 1070 / 1080)


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    """Each round is slower than the one before, for both servers; the peer takes twice as long in each."""
    samples = []
    for number, noise in enumerate((1.0, 3.0, 20.0)):
        for sample in (COLD, WARM):
            samples.append(slowed(sample, noise, round_number=number))
            samples.append(slowed(sample, 2 * noise, round_number=number, server=PEER))
    assert summary(samples).cold_to_warm == 25.0
    assert summary(samples, PEER).to_ours == 2.0
    assert summary(samples).to_ours == 1.0


def test_one_outlier_among_three_rounds_does_not_count() -> None:
    samples = [slowed(COLD, 1, round_number=n) for n in range(3)]
    samples += [slowed(WARM, 50 if n == 1 else 1, round_number=n) for n in range(3)]
    found = summary(samples)
    assert (found.warm_ms, found.cold_to_warm, found.rounds, found.calls) == (20.0, 25.0, 3, 2)


def test_tokens_are_those_of_one_round() -> None:
    found = summary([slowed(sample, 1, round_number=n) for n in range(4) for sample in (COLD, WARM)])
    assert (found.prompt_tokens, found.prefilled_tokens, found.oracle_tokens) == (2070, 1070, 1070)


def test_a_server_that_tells_no_tokens_is_timed_alone() -> None:
    silent = [replace(s, server=PEER, prefilled_tokens=None, prefill_ms=None) for s in (COLD, WARM)]
    found = summary([COLD, WARM, *silent], PEER)
    assert (found.prefilled_tokens, found.oracle_ratio, found.delta_tokens, found.warm_to_prefill) == (None,) * 4
    assert (found.warm_ms, found.to_ours) == (20.0, 1.0)


def test_where_no_call_is_warm_all_are_compared() -> None:
    calls = [replace(sample, role=Role.OTHER) for sample in (COLD, WARM)]
    found = summary([*calls, *(slowed(call, 3, round_number=0, server=PEER) for call in calls)], PEER)
    assert (found.to_ours, found.cold_to_warm, found.cold_ms) == (3.0, None, None)


def test_a_peer_that_left_early_is_compared_where_it_was() -> None:
    samples = [slowed(sample, 1, round_number=n) for n in range(2) for sample in (COLD, WARM)]
    samples += [slowed(COLD, 2, round_number=0, server=PEER), slowed(WARM, 2, round_number=0, server=PEER)]
    assert (summary(samples, PEER).rounds, summary(samples, PEER).to_ours) == (1, 2.0)


def test_what_was_prefilled_is_no_fault() -> None:
    assert faults_of([COLD, WARM, CONTROL, replace(COLD, prefilled_tokens=None)]) == []


def test_restoring_what_was_never_seen_is_a_fault() -> None:
    (fault,) = faults_of([replace(WARM, prefilled_tokens=69)])
    assert fault == "tool-session, round 1, tool result: anchorline restored 1001 of 1070 tokens, and had seen 1000"


def test_calls_that_are_sent_together_may_share_what_one_of_them_prefills() -> None:
    """The first to be sent is not always the first to be served: only their sum is bounded."""
    other = replace(WARM, place=2, prompt_tokens=500, prefilled_tokens=500, oracle_tokens=30)
    first = replace(WARM, prefilled_tokens=30, oracle_tokens=500)
    assert faults_of([first, other]) == []
    (fault,) = faults_of([first, replace(other, prefilled_tokens=499)])
    assert "tool result and 1 more: anchorline restored 1041 of 1570 tokens, and had seen 1040" in fault
    assert len(faults_of([first, replace(other, step=2)])) == 1


def test_restoring_behind_a_changed_tool_is_a_fault_even_if_the_prompts_agree_that_far() -> None:
    (fault,) = faults_of([replace(CONTROL, prefilled_tokens=400, oracle_tokens=400)])
    assert "restored 600 of 1000 tokens behind a changed tool" in fault
