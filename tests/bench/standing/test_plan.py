"""Which workloads run, on how much of a model, and how often."""

from __future__ import annotations

import pytest

from anchorline.bench.standing.plan import (
    CUT_LAYERS,
    HERMES,
    LONG,
    MIX,
    QUICK_WORKLOADS,
    RECORDED,
    RESTART,
    TOOL_SESSION,
    WORKLOADS,
    Group,
    choose,
    groups_of,
)


def groups(*workloads: str, from_file: bool = True, quick: bool = False, layers: int | None = None) -> list[Group]:
    return groups_of(
        workloads or WORKLOADS, from_file=from_file, quick=quick, rounds=None, anchor_tokens=8500, layers=layers
    )


@pytest.mark.parametrize("quick", [False, True])
def test_every_workload_runs_or_is_skipped_with_a_reason(quick: bool) -> None:
    chosen, skipped = choose((), quick=quick, has_traces=False)
    assert {*chosen, *skipped} == set(WORKLOADS)
    assert chosen == (QUICK_WORKLOADS if quick else (*QUICK_WORKLOADS, LONG))
    assert all("--traces" in skipped[name] for name in RECORDED if not quick)


def test_what_is_named_runs_though_the_bench_is_quick() -> None:
    assert choose((LONG, MIX), quick=True, has_traces=True) == ((LONG, MIX), {})
    for name in (HERMES, MIX):
        assert choose((name,), quick=True, has_traces=False) == ((), {name: "needs recorded traces (--traces)"})


@pytest.mark.parametrize("from_file", [False, True])
def test_every_workload_is_in_one_group(from_file: bool) -> None:
    names = [name for group in groups(from_file=from_file) for name in group.workloads]
    assert sorted(names) == sorted(WORKLOADS)


def test_a_file_is_whole_for_the_tool_session_alone() -> None:
    kept = {name: group.layers for group in groups() for name in group.workloads}
    assert kept == {name: None if name == TOOL_SESSION else CUT_LAYERS for name in WORKLOADS}


def test_a_quick_bench_cuts_files_and_starts_servers_anew_for_the_restart_alone() -> None:
    first, restart = groups(*QUICK_WORKLOADS, quick=True)
    assert (first.workloads, restart.workloads) == (QUICK_WORKLOADS[:-1], (RESTART,))
    assert first.layers == restart.layers == CUT_LAYERS
    assert first.rounds < groups(TOOL_SESSION)[0].rounds


def test_only_the_restart_is_measured_with_the_disk_tier() -> None:
    for quick in (False, True):
        assert [group.workloads for group in groups(quick=quick) if group.cache_disk] == [(RESTART,)]


def test_test_models_are_whole_and_layers_that_were_asked_for_hold_everywhere() -> None:
    assert {group.layers for group in groups(from_file=False)} == {None}
    assert {group.layers for group in groups(layers=3)} == {3}


def test_the_server_without_a_cache_runs_what_does_not_take_hours() -> None:
    uncached = {name for group in groups() for name in group.uncached}
    assert uncached == set(QUICK_WORKLOADS)
    quick = [group.uncached for group in groups(*QUICK_WORKLOADS, quick=True)]
    assert quick == [(TOOL_SESSION,), ()]


def test_the_context_holds_two_conversations() -> None:
    (group,) = groups(TOOL_SESSION, from_file=False)
    assert group.context_tokens >= 2 * group.anchor_tokens
