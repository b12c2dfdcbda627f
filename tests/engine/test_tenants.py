"""Calls of several tenants: each is answered, timed and told what it would be if the others said other things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorline.cache.prompt import Prompt
from anchorline.engine.request import CallReport, PlanKind
from anchorline.engine.stream import Call
from anchorline.errors import Cancelled
from anchorline.llama.interface import MemoryKind, TokenArray
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_properties import check_rest
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply

TENANTS = ("ann", "ben", "cleo")
APART = 10
"""What is added to the ids of one tenant so that it shares none with the others."""

kinds = pytest.mark.parametrize("kind", list(MemoryKind))


@dataclass(frozen=True)
class Ask:
    """A call of a tenant: a head, which may be common to all, and what follows it."""

    tenant: int
    head: tuple[int, ...]
    tail: tuple[int, ...]
    head_is_common: bool
    use_cache: bool = True

    def prompt(self, *, apart: bool) -> Prompt:
        """With ``apart`` no other tenant's prompt has the same ids, but for a common head."""
        offset = APART * (self.tenant + 1) if apart else 0
        head = [token + offset * (not self.head_is_common) for token in self.head]
        ids = [*head, *(token + offset for token in self.tail)]
        prompt = make_prompt(ids, head=len(head), ends=(len(head) + len(self.tail) // 2,) if len(ids) > 8 else ())
        common_tokens = len(head) if self.head_is_common else 0
        return replace(prompt, tenant=TENANTS[self.tenant], common_tokens=common_tokens)

    def reply(self, *, apart: bool) -> Saying:
        return Saying(APART * (self.tenant + 1) if apart else 0)


@dataclass(frozen=True)
class Saying:
    """Chooses the ids of a reply, so that it takes as many steps whatever the prompt was."""

    offset: int

    def force(self, choice: int, generated: TokenArray) -> int | None:
        return self.offset + 1 + generated.size % 2


ids = st.sampled_from([1, 2])
"""Two ids: histories of different tenants agree all the time."""
asks = st.builds(
    Ask,
    tenant=st.integers(0, len(TENANTS) - 1),
    head=st.lists(ids, min_size=1, max_size=40).map(tuple),
    tail=st.lists(ids, min_size=2, max_size=30).map(tuple),
    head_is_common=st.booleans(),
    use_cache=st.sampled_from([True, True, True, False]),
)
actions = st.one_of(
    asks,
    st.lists(asks, min_size=2, max_size=3),  # at once
    st.integers(1, 6),  # steps
    st.integers(-30, -1),  # a cancelled call
)
scripts = st.lists(actions, min_size=2, max_size=20)
Script = Sequence[Ask | list[Ask] | int]

shapes = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT]),
        "exact": st.booleans(),
        "parallel": st.integers(1, 3),
        "resident_idle": st.integers(0, 3),
        "context_tokens": st.sampled_from([200, 800]),
    }
)


def make(
    *,
    kind: MemoryKind = MemoryKind.PLAIN,
    exact: bool = False,
    parallel: int = 3,
    resident_idle: int = 3,
    context_tokens: int = 800,
) -> Harness:
    """An engine whose cache holds everything."""
    parallel, resident_idle = (1, 0) if exact else (parallel, resident_idle)
    runtime = FakeRuntime(context_tokens=context_tokens, sequences=parallel + resident_idle, kind=kind)
    return Harness(runtime, parallel=parallel, resident_idle=resident_idle, exact=exact)


def play(harness: Harness, script: Script, *, apart: bool, forced: bool) -> list[tuple[Call, Recorder]]:
    """Do what ``script`` says, to the end."""
    opened: list[tuple[Call, Recorder]] = []

    def ask(wanted: Ask) -> None:
        forcer = wanted.reply(apart=apart) if forced else None
        opened.append(harness.open(wanted.prompt(apart=apart), forcer=forcer, use_cache=wanted.use_cache))

    for action in script:
        if isinstance(action, Ask):
            ask(action)
        elif isinstance(action, list):
            for wanted in action:
                ask(wanted)
        elif action > 0:
            for _ in range(action):
                harness.loop.step()
        elif opened:
            call, recorder = opened[action % len(opened)]
            if not recorder.has_ended:
                harness.loop.cancel(call)
    harness.run()
    return opened


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, scripts)
def test_no_report_tells_whether_other_tenants_said_the_same(shape: dict[str, object], script: Script) -> None:
    """Plan, restored, seen, miss, difference, even each duration: all as if no id but common heads' were another's."""

    def reports(*, apart: bool) -> list[CallReport | None]:
        played = play(make(**shape), script, apart=apart, forced=True)  # type: ignore[arg-type]
        return [report_of(call, recorder, apart=apart) for call, recorder in played]

    assert reports(apart=False) == reports(apart=True)


def report_of(call: Call, recorder: Recorder, *, apart: bool) -> CallReport | None:
    """The report of a call, its ids as they were before they were set apart."""
    report = recorder.report
    if report is None or report.difference is None or not apart:
        return report
    offset = APART * (TENANTS.index(call.prompt.tenant) + 1)
    instead = tuple(token - offset for token in report.difference.instead)
    return replace(report, difference=replace(report.difference, instead=instead))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, scripts)
def test_every_answer_is_the_fakes_own(shape: dict[str, object], script: Script) -> None:
    harness = make(**shape)  # type: ignore[arg-type]
    for call, recorder in play(harness, script, apart=False, forced=False):
        if recorder.error is not None:
            assert isinstance(recorder.error, Cancelled)
            continue
        kind = harness.runtime.capabilities.kind
        assert recorder.tokens.get(0, []) == expected_reply(call.prompt.tokens.tolist(), call.max_tokens, kind=kind)
    check_rest(harness, harness.runtime)


HEAD, TAIL = (1, 2) * 60, (2, 1) * 10


@kinds
def test_a_foreign_prefix_is_cold_and_never_seen_and_ones_own_is_warm(kind: MemoryKind) -> None:
    harness = make(kind=kind)
    for tenant in (0, 1):
        prompt = Ask(tenant, HEAD, TAIL, head_is_common=False).prompt(apart=False)
        first, again = harness.report(prompt), harness.report(prompt)
        assert (first.plan, first.restored_tokens, first.seen_tokens, first.miss) == (PlanKind.COLD, 0, 0, None)
        assert first.difference is None
        assert again.restored_tokens >= len(HEAD)


@kinds
def test_a_common_head_is_restored_exactly_up_to_its_end(kind: MemoryKind) -> None:
    harness = make(kind=kind)
    harness.report(Ask(0, HEAD, TAIL, head_is_common=True).prompt(apart=False))
    report = harness.report(Ask(1, HEAD, TAIL, head_is_common=True).prompt(apart=False))
    assert report.restored_tokens == report.seen_tokens == len(HEAD)


@kinds
def test_only_a_prompt_whose_own_head_is_common_sees_common_heads(kind: MemoryKind) -> None:
    """Else a tenant could find out a head that it does not know, one token after another."""
    harness = make(kind=kind)
    harness.report(Ask(0, HEAD, TAIL, head_is_common=True).prompt(apart=False))
    report = harness.report(Ask(1, HEAD[:-1], TAIL, head_is_common=False).prompt(apart=False))
    assert (report.restored_tokens, report.seen_tokens) == (0, 0)


@kinds
@pytest.mark.parametrize(("head_is_common", "prefilled_once"), [(False, 0), (True, len(HEAD))])
def test_only_for_a_common_head_is_another_tenants_prefill_waited_for(
    kind: MemoryKind, head_is_common: bool, prefilled_once: int
) -> None:
    harness = make(kind=kind)
    asked = [Ask(tenant, HEAD, TAIL, head_is_common=head_is_common).prompt(apart=False) for tenant in (0, 1)]
    opened = [harness.open(prompt) for prompt in asked]
    harness.loop.step()
    assert [stream.hold is not None for stream in harness.loop.waiting] == [True] * head_is_common
    harness.run()
    reports = [recorder.report for _, recorder in opened if recorder.report is not None]
    prefilled = sum(report.prefilled_tokens for report in reports)
    assert prefilled == sum(map(len, asked)) - prefilled_once


def test_each_tenant_pins_its_head_and_all_pin_the_rows_of_a_common_one() -> None:
    for head_is_common, kept in ((False, 2), (True, 1)):
        harness = make()
        for tenant in (0, 1):
            prompt = Ask(tenant, HEAD, TAIL, head_is_common=head_is_common).prompt(apart=False)
            harness.report(replace(prompt, pin_head=True))
        assert harness.cache is not None
        pins = harness.cache.pins
        (ann,), (ben,) = (pins.of(tenant) for tenant in TENANTS[:2])
        assert (ann.segment is ben.segment) == head_is_common
        assert pins.pinned_bytes == kept * ann.nbytes


def test_anothers_reply_right_behind_a_common_head_keeps_its_state() -> None:
    harness = make(kind=MemoryKind.HYBRID, resident_idle=0)
    asked = [Ask(tenant, HEAD, TAIL, head_is_common=True).prompt(apart=False) for tenant in (0, 1)]
    mine, other = (replace(prompt, cuts=prompt.cuts[:1]) for prompt in asked)
    reply = harness.ask(mine).tokens[0]
    harness.ask(other)
    again = make_prompt([*mine.tokens.tolist(), *reply, 1, 2], head=len(HEAD))
    report = harness.report(replace(again, tenant=mine.tenant, common_tokens=len(HEAD)))
    assert report.restored_tokens == len(mine) + len(reply) - 1
