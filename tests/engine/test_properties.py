"""Any interleaving of requests, cancellations, evictions and failures gives exactly the fake's own answers."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorline.cache.policy import EVICTION
from anchorline.cache.tree import GHOST_TOKENS_MIN, SegmentTree
from anchorline.engine.request import CallReport
from anchorline.engine.stream import Call
from anchorline.errors import Cancelled
from anchorline.llama.interface import MemoryKind
from tests.engine.harness import Harness, make_cells_dear, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, Faults, expected_reply

histories = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=60)
"""Three ids and some sixty positions: prefixes agree often and part anywhere."""

heads = st.lists(st.sampled_from([1, 2, 3]), min_size=20, max_size=40)
"""Long enough that a request waits while another prefills the same one."""
use_cache = st.sampled_from([True, True, True, False])

actions = st.one_of(
    st.tuples(st.just("ask"), histories, st.integers(1, 12), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("burst"), heads, st.lists(st.tuples(histories, use_cache), min_size=2, max_size=4)),
    st.tuples(st.just("seal"), histories),
    st.tuples(st.just("steps"), st.integers(1, 6)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Harness, FakeRuntime]:
    chance = st.sampled_from([0.0, 0.0, 0.1, 0.5])
    faults = Faults(
        random=random.Random(draw(st.integers(0, 1000))),
        decode=draw(st.sampled_from([0.0, 0.0, 0.05])),
        export=draw(chance),
        import_=draw(chance),
        import_broken=draw(chance),
        fork=draw(chance),
        state=draw(chance),
    )
    exact = draw(st.booleans())
    parallel = 1 if exact else draw(st.integers(1, 3))
    resident_idle = 0 if exact else draw(st.integers(0, 2))
    runtime = FakeRuntime(
        context_tokens=draw(st.sampled_from([80, 120, 400])),
        sequences=parallel + resident_idle,
        batch_tokens=draw(st.sampled_from([4, 16])),
        faults=faults,
        kind=draw(st.sampled_from([MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT])),
    )
    cache_bytes = draw(st.sampled_from([None, 256, 1024, 1 << 16]))
    harness = Harness(
        runtime,
        cache_bytes=cache_bytes,
        parallel=parallel,
        resident_idle=resident_idle,
        exact=exact,
        checkpoint_every=draw(st.sampled_from([0, 7])),
        eviction=draw(st.sampled_from(sorted(EVICTION))),
    )
    if draw(st.booleans()):
        make_cells_dear(harness.loop.meter)
    return harness, runtime


def reseats(harness: Harness, runtime: FakeRuntime) -> bool:
    """Whether an injected fault can strike in exact mode's own export and import."""
    return harness.config.exact and runtime.capabilities.has_state


def check_tree(tree: SegmentTree) -> None:
    """Kept nodes have kept parents; siblings of a splitting tree differ at once; counts agree."""
    ghosts = 0
    kept = set()
    for node in tree:
        assert node.leases == 0
        assert node.parent is not None
        assert node.start == node.parent.end
        assert node.rows is None or node.parent is tree.root or node.parent.rows is not None
        if node.is_ghost:
            ghosts += max(int(node.tokens.size), GHOST_TOKENS_MIN)
        if node.rows is not None:
            kept.add(node)
        if tree.splitting:
            assert all(len(siblings) == 1 for siblings in node.children.values())
    assert (ghosts, kept) == (tree.ghost_tokens, set(tree.kept))


def check_rest(harness: Harness, runtime: FakeRuntime) -> None:
    """Nothing runs: the pool knows its cells, ids are not lost, the arena adds up."""
    pool = harness.loop.pool
    assert runtime.used_cells == pool.used_cells
    assert {live.id for live in pool} == {seq for seq in range(runtime.limits.sequences) if runtime.length(seq)}
    assert all(live.length == runtime.length(live.id) for live in pool)
    assert not any(live.states for live in pool)
    assert len(list(pool)) <= harness.config.resident_idle + harness.config.parallel
    if harness.cache is None:
        assert runtime.used_cells == 0
        return
    check_tree(harness.cache.tree)
    rows = {id(node.rows): node.rows for node in harness.cache.tree if node.rows is not None}
    states = [node.state for node in harness.cache.tree if node.state is not None]
    assert (len(states), sum(s.nbytes for s in states)) == (harness.cache.tree.states, harness.cache.tree.state_bytes)
    sizes = [size for size in (*(r.nbytes for r in rows.values()), *(s.nbytes for s in states)) if size]
    held = sum(-(-size // 64) * 64 for size in sizes)
    assert harness.cache.arena.used_bytes == held
    assert harness.cache.pins.pinned_bytes <= harness.cache.arena.budget_bytes // 2


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.lists(actions, min_size=1, max_size=25))
def test_every_answer_is_the_fakes_own(world: tuple[Harness, FakeRuntime], script: list[tuple]) -> None:  # type: ignore[type-arg]
    harness, runtime = world
    asked: list[tuple[Call, Recorder, list[int], int, int]] = []
    sealed: list[tuple[Call, Recorder]] = []

    def ask(ids: list[int], head: int, max_tokens: int, choices: int, use_cache: bool) -> None:
        choices = min(choices, harness.config.parallel)
        ids = ids[: runtime.limits.context_tokens - 1]
        prompt = make_prompt(ids, head=head or None, ends=(len(ids) * 3 // 4,) if len(ids) > 8 else (), pin=True)
        call, recorder = harness.open(prompt, max_tokens=max_tokens, choices=choices, seed=5, use_cache=use_cache)
        asked.append((call, recorder, ids, max_tokens, choices))

    for action in script:
        if action[0] == "ask":
            _, ids, max_tokens, choices, use_cache = action
            ask(ids, len(ids) // 2, max_tokens, choices, use_cache)
        elif action[0] == "burst":
            _, head, tails = action
            for tail, use_cache in tails:
                ask([*head, *tail], len(head), 3, 1, use_cache)
        elif action[0] == "seal" and not harness.config.exact:
            sealed.append(harness.seal(action[1][: runtime.limits.context_tokens - 1]))
        elif action[0] == "steps":
            for _ in range(action[1]):
                harness.loop.step()
        elif action[0] == "cancel" and asked:
            call, recorder, *_ = [*asked, *sealed][action[1] % (len(asked) + len(sealed))]
            if not recorder.has_ended:
                harness.loop.cancel(call)
    harness.run()
    for _, recorder in sealed:
        assert recorder.has_ended
        assert not recorder.tokens
        assert recorder.error is None or isinstance(recorder.error, Cancelled) or runtime.faults.decode
    for call, recorder, ids, max_tokens, choices in asked:
        assert recorder.has_ended
        if recorder.error is not None:
            assert isinstance(recorder.error, Cancelled) or runtime.faults.decode or reseats(harness, runtime)
            continue
        report = recorder.report
        assert report is not None
        assert report.resident_tokens + report.host_tokens + report.prefilled_tokens == len(ids)
        assert report.prefilled_tokens >= 1
        check_account(report)
        if runtime.capabilities.can_trim:
            assert report.miss is not None or report.restored_tokens >= min(report.seen_tokens, len(ids) - 1)
        for choice in range(choices):
            expected = expected_reply(
                ids, min(max_tokens, call.max_tokens), salt=5 + choice, kind=runtime.capabilities.kind
            )
            assert recorder.tokens.get(choice, []) == expected
    check_rest(harness, runtime)


def check_account(report: CallReport) -> None:
    """Nothing is restored that was not seen, nothing lost that is not behind the first difference."""
    assert sum(end - start for start, end in report.segments) == report.host_tokens
    assert report.restored_tokens <= report.seen_tokens <= report.prompt_tokens
    if report.difference is not None:
        assert report.seen_tokens <= report.difference.position
        assert report.difference.position + report.difference.lost_tokens <= report.prompt_tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(histories, min_size=1, max_size=8), st.sampled_from([4, 16]))
def test_exact_mode_chunks_are_those_of_a_cold_run(prompts: list[list[int]], batch_tokens: int) -> None:
    """Whatever was asked before, each prompt's chunks end where those of a run without a cache end."""
    warm_runtime = FakeRuntime(sequences=1, batch_tokens=batch_tokens)
    warm = Harness(warm_runtime, parallel=1, exact=True)
    for ids in prompts:
        prompt = make_prompt(ids, head=len(ids) // 2 or None, ends=(max(1, len(ids) - 1),) if len(ids) > 4 else ())
        cold_runtime = FakeRuntime(sequences=1, batch_tokens=batch_tokens)
        cold = Harness(cold_runtime, parallel=1, exact=True, cache_bytes=None)
        cold.ask(prompt)
        warm_runtime.chunks.clear()
        warm.ask(prompt)
        assert warm_runtime.chunks == cold_runtime.chunks[len(cold_runtime.chunks) - len(warm_runtime.chunks) :]
