"""What a call is told of its plan: where tokens come from, what is missing, where its prompt leaves earlier ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorline.cache.difference import BLOCK_TOKENS
from anchorline.cache.prompt import Prompt
from anchorline.engine.commands import Preview, PreviewCall
from anchorline.engine.request import CallReport, GenerationRequest, MissReason, PlanKind
from anchorline.llama.interface import MemoryKind, SamplingParams
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_states import HEAD, conversation, message
from tests.support.fake_runtime import FakeRuntime, expected_reply, tokens_of

kinds = pytest.mark.parametrize("kind", list(MemoryKind))
everywhere = pytest.mark.parametrize(
    ("kind", "exact"), [*((kind, False) for kind in MemoryKind), (MemoryKind.PLAIN, True)]
)


def make(kind: MemoryKind = MemoryKind.PLAIN, *, exact: bool = False, resident_idle: int = 1) -> Harness:
    runtime = FakeRuntime(context_tokens=4000, sequences=3 + resident_idle, kind=kind)
    return Harness(runtime, exact=exact, resident_idle=0 if exact else resident_idle)


def preview_of(harness: Harness, prompt: Prompt, *, use_cache: bool = True) -> Preview:
    request = GenerationRequest(
        id="preview", prompt=prompt, sampling=SamplingParams(), max_tokens=4, choices=2, use_cache=use_cache
    )
    return PreviewCall(request=request).perform(harness.loop)


def begins_alike(report: CallReport) -> CallReport:
    """What of a report a preview can know."""
    return replace(
        report, id="", generated_tokens=0, queue_seconds=0, plan_seconds=0, restore_seconds=0, prefill_seconds=0,
        decode_seconds=0, ttft_seconds=None, expected_seconds=0, rejected_plans=(), call_class=report.call_class.COLD,
    )  # fmt: skip


def remembered(harness: Harness) -> object:
    """All that a call could change of cache and live sequences."""
    cache = harness.cache
    assert cache is not None
    tree = [
        (node.start, node.tokens.tolist(), node.rows, node.state, node.last_used, node.last_turn, node.use_gap,
         node.leases, node.pins, node.call_class)
        for node in cache.tree
    ]  # fmt: skip
    live = [(one.id, one.length, one.last_used, one.busy, one.buffer) for one in harness.loop.pool]
    pins = [(pin.id, pin.used_seconds) for pin in cache.pins.of("")]
    return tree, cache.tree.tick, cache.counters.copy(), cache.arena.used_bytes, live, pins, len(harness.loop.waiting)


@everywhere
def test_a_preview_is_what_then_happens_and_changes_nothing(kind: MemoryKind, exact: bool) -> None:
    harness = make(kind, exact=exact)
    first, second = ([[name] * 300, *(message(name, n) for n in range(1, 7))] for name in (1, 2))
    prompts = [conversation(*talk[:end], turn=end - 1) for end in (1, 3, 5) for talk in (first, second)]
    prompts += [conversation(*first[:3], message(3, 0), *first[4:], turn=4), prompts[-1]]
    for prompt in prompts:
        before = remembered(harness)
        told = preview_of(harness, prompt).report
        assert remembered(harness) == before
        report = harness.report(prompt)
        assert begins_alike(told) == begins_alike(report)


@kinds
def test_a_preview_leaves_what_is_still_to_be_saved_to_the_saver(kind: MemoryKind) -> None:
    runtime = FakeRuntime(context_tokens=4000, sequences=4, batch_tokens=400, kind=kind)
    harness = Harness(runtime, checkpoint_every=20)
    _, recorder = harness.open(conversation([n * 7 % 40 for n in range(300)]))
    while not recorder.has_ended:
        harness.loop.step()
    before = remembered(harness)
    assert harness.loop.pending_saves == preview_of(harness, conversation(message(2, 0))).pending_saves == 1
    assert remembered(harness) == before


def test_a_preview_without_the_cache_says_what_it_would_have_restored() -> None:
    harness = make()
    prompt = conversation(message(1, 0))
    harness.report(prompt)
    report = preview_of(harness, prompt, use_cache=False).report
    assert (report.plan, report.restored_tokens, report.miss) == (PlanKind.COLD, 0, MissReason.OFF)


def test_a_restored_chain_is_told_by_its_segments() -> None:
    harness = make(resident_idle=0)
    talk = [message(1, n) for n in range(3)]
    harness.report(conversation(*talk[:1]))
    report = harness.report(conversation(*talk, turn=2))
    assert report.plan is PlanKind.RESTORE
    assert report.segments[0][0] == 0
    assert report.segments[-1][1] == report.restored_tokens
    assert all(left[1] == right[0] for left, right in zip(report.segments, report.segments[1:], strict=False))
    assert report.sequence is None


def test_a_continued_sequence_is_told_by_its_id() -> None:
    harness = make()
    prompt = conversation(message(1, 0))
    harness.report(prompt)
    (idle,) = harness.loop.pool.idle()
    report = harness.report(prompt)
    assert (report.plan, report.sequence, report.segments) == (PlanKind.CONTINUE, idle.id, ())


LONG = [(n * n * 7 + n) % 31 for n in range(200)]


@everywhere
def test_a_changed_head_loses_what_stands_behind_it(kind: MemoryKind, exact: bool) -> None:
    """Byte for byte the place of the change, also where what is seen ends at a chunk before it."""
    harness = make(kind, exact=exact)
    head = [*range(30), 33, *LONG]
    harness.report(make_prompt([*head, 5, 6], head=len(head)))
    changed = [*range(30), 34, *LONG]
    report = harness.report(make_prompt([*changed, 7, 8], head=len(changed)))
    assert report.difference is not None
    assert report.difference.position == 30
    assert report.difference.instead[0] == 33
    assert len(LONG) - 2 * BLOCK_TOKENS < report.difference.lost_tokens <= len(LONG)


@everywhere
def test_a_turn_that_goes_on_where_the_reply_ended_differs_from_nothing(kind: MemoryKind, exact: bool) -> None:
    harness = make(kind, exact=exact)
    prompt = conversation(message(1, 0))
    harness.report(prompt)
    reply = expected_reply(prompt.tokens.tolist(), 4, kind=kind)
    longer = replace(prompt, tokens=tokens_of([*prompt.tokens.tolist(), *reply, *LONG]))
    if exact:  # what was generated is no chunk of a prompt
        longer = replace(prompt, tokens=tokens_of([*prompt.tokens.tolist(), *LONG]))
    report = harness.report(longer)
    assert report.seen_tokens > 0
    assert report.difference is None


@kinds
def test_another_conversation_on_the_same_head_loses_nothing(kind: MemoryKind) -> None:
    harness = make(kind)
    harness.report(conversation(*(message(1, n) for n in range(20))))
    report = harness.report(conversation(message(2, 0)))
    assert report.difference is not None
    assert (report.difference.position, report.difference.lost_tokens) == (len(HEAD), 0)


@kinds
def test_of_another_tenants_prompts_nothing_is_told_also_behind_a_common_head(kind: MemoryKind) -> None:
    harness = make(kind)
    theirs = conversation(*(message(1, n) for n in range(9)))
    harness.report(replace(theirs, tenant="ann", common_tokens=len(HEAD)))
    changed = conversation(message(2, 0), *(message(1, n) for n in range(1, 9)))
    for common_tokens in (0, len(HEAD)):
        report = harness.report(replace(changed, tenant=f"ben {common_tokens}", common_tokens=common_tokens))
        assert report.seen_tokens == common_tokens
        assert report.difference is None
