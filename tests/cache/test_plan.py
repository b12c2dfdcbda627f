"""The planner, over hand-made situations and over arbitrary ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.plan import HostChain, Resident, Source, Speeds, make_plan

FAST_RESTORE = Speeds(prefill_seconds_per_token=1e-2, restore_seconds_per_byte=1e-10, restore_seconds_per_segment=1e-4)


def resident(sequence: int, match: int, length: int | None = None, *, busy: bool = False) -> Resident:
    return Resident(sequence=sequence, match_tokens=match, length_tokens=length or match, busy=busy)


def host(match: int, *ends: int) -> HostChain:
    return HostChain(match_tokens=match, ends=ends or (match,), bytes_per_token=1000.0)


def test_continues_the_sequence_that_ends_where_the_prompt_goes_on() -> None:
    plan = make_plan(1000, [resident(1, 990)], host(990), FAST_RESTORE, may_fork=True)
    assert (plan.source, plan.sequence, plan.restored_tokens) == (Source.CONTINUE, 1, 990)
    assert {source for source, _ in plan.rejected} == {Source.NOTHING, Source.HOST}


def test_leaves_the_last_token_to_prefill() -> None:
    assert make_plan(100, [resident(1, 100)], None, FAST_RESTORE, may_fork=True).restored_tokens == 99
    assert make_plan(100, [], host(100), FAST_RESTORE, may_fork=True).restored_tokens == 99
    assert make_plan(1, [resident(1, 1)], host(1), FAST_RESTORE, may_fork=True).source is Source.NOTHING


def test_forks_rather_than_cut_off_a_long_tail() -> None:
    long_tail = resident(1, 100, 20_000)
    assert make_plan(600, [long_tail], None, FAST_RESTORE, may_fork=True).source is Source.FORK
    assert make_plan(600, [long_tail], None, FAST_RESTORE, may_fork=False).source is Source.NOTHING


def test_a_busy_sequence_is_forked() -> None:
    plan = make_plan(600, [resident(1, 500, busy=True)], None, FAST_RESTORE, may_fork=True)
    assert plan.source is Source.FORK


def test_plans_that_lose_name_their_sequence_and_what_they_would_have_brought() -> None:
    plan = make_plan(1000, [resident(1, 300), resident(2, 300)], None, FAST_RESTORE, may_fork=True)
    assert plan.sequence == 1
    _, (source, why) = plan.rejected
    assert source is Source.CONTINUE
    assert why == f"sequence 2, 300 tokens restored, {plan.expected_seconds * 1e3:.1f} ms expected"


def test_the_host_goes_on_where_the_resident_ends() -> None:
    plan = make_plan(1000, [resident(2, 300)], host(900, 300, 900), FAST_RESTORE, may_fork=True)
    assert (plan.sequence, plan.resident_tokens, plan.host_tokens) == (2, 300, 600)


def test_prefills_when_restoring_is_slower() -> None:
    slow = Speeds(prefill_seconds_per_token=1e-6, restore_seconds_per_byte=1e-6, restore_seconds_per_segment=1.0)
    plan = make_plan(1000, [], host(999), slow, may_fork=True)
    assert plan.source is Source.NOTHING
    assert plan.rejected[0][0] is Source.HOST


def on_disk(match: int, *, load_bytes: int) -> HostChain:
    return HostChain(match_tokens=match, ends=(match,), bytes_per_token=1000.0, load_bytes=load_bytes)


def test_reads_from_disk_what_is_dearer_to_prefill() -> None:
    plan = make_plan(1000, [], host(300), FAST_RESTORE, may_fork=True, disk=on_disk(900, load_bytes=600_000))
    assert (plan.source, plan.restored_tokens, plan.load_bytes) == (Source.DISK, 900, 600_000)
    assert {source for source, _ in plan.rejected} == {Source.NOTHING, Source.HOST}


def test_a_slow_disk_loses_to_what_is_in_ram_and_to_prefill() -> None:
    slow = replace(FAST_RESTORE, load_seconds_per_byte=1e-3)
    plan = make_plan(1000, [], host(300), slow, may_fork=True, disk=on_disk(900, load_bytes=600_000))
    assert (plan.source, plan.restored_tokens, plan.load_bytes) == (Source.HOST, 300, 0)
    assert make_plan(1000, [], None, slow, may_fork=True, disk=on_disk(900, load_bytes=9)).source is Source.DISK
    assert make_plan(1000, [], None, slow, may_fork=True, disk=on_disk(900, load_bytes=9_000)).source is Source.NOTHING


def test_nothing_is_read_where_a_resident_sequence_reaches_as_far() -> None:
    plan = make_plan(1000, [resident(1, 950)], None, FAST_RESTORE, may_fork=True, disk=on_disk(900, load_bytes=1))
    assert (plan.source, plan.load_bytes) == (Source.CONTINUE, 0)


residents = st.lists(
    st.builds(
        lambda sequence, match, extra, busy: resident(sequence, match, match + extra, busy=busy),
        st.integers(0, 9),
        st.integers(1, 500),
        st.integers(0, 500),
        st.booleans(),
    ),
    max_size=4,
)


@given(st.integers(1, 500), residents, st.one_of(st.none(), st.integers(1, 500)), st.booleans())
def test_plans_stay_within_what_matches(
    prompt: int, live: list[Resident], host_match: int | None, may_fork: bool
) -> None:
    chain = host(host_match) if host_match else None
    plan = make_plan(prompt, live, chain, FAST_RESTORE, may_fork=may_fork)
    assert 0 <= plan.resident_tokens <= plan.restored_tokens < prompt
    if plan.sequence is None:
        assert plan.resident_tokens == 0
    else:
        assert any(r.sequence == plan.sequence and r.match_tokens >= plan.resident_tokens > 0 for r in live)
    if plan.host_tokens:
        assert host_match is not None
        assert plan.restored_tokens <= host_match
    if plan.source is Source.CONTINUE:
        assert not all(r.busy for r in live if r.sequence == plan.sequence)
    if plan.source is Source.FORK:
        assert may_fork
