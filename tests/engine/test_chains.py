"""Chains stay short however long a conversation gets, and answers stay the fake's own."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorline.cache.chains import restore_spans
from anchorline.config import ModelConfig
from anchorline.engine.idle import DropReason
from anchorline.llama.interface import MemoryKind
from anchorline.llama.model import load_model
from tests.engine.exact import ask as ask_real
from tests.engine.exact import conversation, engine_on
from tests.engine.harness import Harness, make_prompt
from tests.engine.test_real_states import with_generation_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import CELL_BYTES, FakeRuntime, expected_reply

CHAIN_SEGMENTS = 8
FIRST_TOKENS = 8
"""Of a reply: later ones may differ by batch effects."""
HEAD = [1, 2, 3, 4, 5, 6, 7, 8] * 4

kinds = pytest.mark.parametrize("kind", list(MemoryKind))


def make(kind: MemoryKind, *, cache_bytes: int = 1 << 20, exact: bool = False) -> Harness:
    runtime = FakeRuntime(context_tokens=8_000, sequences=1, batch_tokens=16, kind=kind)
    return Harness(runtime, parallel=1, resident_idle=0, cache_bytes=cache_bytes, exact=exact)


def ask(harness: Harness, ids: list[int], *, max_tokens: int = 4) -> Recorder:
    prompt = make_prompt(ids, head=len(HEAD), ends=(len(ids) - 3,), pin=True)
    recorder = harness.ask(prompt, max_tokens=max_tokens)
    assert recorder.tokens.get(0, []) == expected_reply(ids, max_tokens, kind=harness.runtime.capabilities.kind)
    return recorder


def message(turn: int) -> list[int]:
    return [turn % 40, *((turn * 7 + offset) % 40 for offset in range(9)), 40, 41, 42]


@kinds
@pytest.mark.parametrize("rerendered", [False, True])
def test_sixty_turns_are_restored_from_eight_segments_at_most(kind: MemoryKind, rerendered: bool) -> None:
    harness = make(kind)
    ids = list(HEAD)
    for turn in range(60):
        ids += message(turn)
        recorder = ask(harness, ids)
        assert recorder.report is not None
        assert turn == 0 or recorder.report.host_tokens > 0
        ids += [45, 46] if rerendered else recorder.tokens.get(0, [])
    assert 1 < harness.runtime.longest_chain <= CHAIN_SEGMENTS
    assert harness.cache is not None
    assert harness.cache.counters.merged_segments > 0


def test_merging_leaves_one_copy_of_each_row() -> None:
    """Replies come back unchanged; what is exported goes a few times through the arena, in all."""
    harness = make(MemoryKind.PLAIN)
    assert harness.cache is not None
    ids = list(HEAD)
    for turn in range(60):
        ids += message(turn)
        ids += ask(harness, ids).tokens.get(0, [])
    rows = {id(node.rows): node.rows for node in harness.cache.tree if node.rows is not None}
    assert sum(kept.nbytes for kept in rows.values()) <= len(ids) * CELL_BYTES
    assert harness.cache.counters.merged_bytes <= 6 * len(ids) * CELL_BYTES


@kinds
def test_the_pinned_head_is_imported_without_what_others_built_on_it(kind: MemoryKind) -> None:
    harness = make(kind)
    assert harness.cache is not None
    ids = list(HEAD)
    for turn in range(20):
        ids += message(turn)
        ask(harness, ids)
    before = harness.cache.counters.restored_bytes
    recorder = ask(harness, [*HEAD, 30, 31, 32, 33])
    assert recorder.report is not None
    assert recorder.report.restored_tokens == len(HEAD)
    expected = len(HEAD) * CELL_BYTES if harness.runtime.capabilities.has_rows else 0
    assert harness.cache.counters.restored_bytes - before == expected


@pytest.mark.parametrize("kind", [MemoryKind.PLAIN, MemoryKind.HYBRID])
def test_side_calls_at_every_turn_do_not_make_the_chain_longer(kind: MemoryKind) -> None:
    """Each leaves a fork behind; there are more of them than segments."""
    harness = make(kind)
    ids = list(HEAD)
    for turn in range(30):
        ids += message(turn)
        ask(harness, ids)
        ask(harness, [*ids, 47, turn % 40, 40, 41, 42])
    assert harness.runtime.longest_chain <= CHAIN_SEGMENTS


def test_idle_sequences_make_room_for_a_merged_segment_of_which_a_part_is_wanted() -> None:
    """The whole of it is imported before the rest is dropped: more cells than the stream itself takes."""
    runtime = FakeRuntime(context_tokens=400, sequences=2, batch_tokens=16)
    harness = Harness(runtime, parallel=1, resident_idle=1)
    assert harness.cache is not None
    ids = list(HEAD)
    for turn in range(20):
        ids += message(turn)
        ask(harness, ids)
    wanted = 100
    match = harness.cache.match(make_prompt(ids), make_prompt(ids).tokens)
    largest = max(span.cells_end for span in restore_spans(match, 0, wanted))
    harness.loop.idle.drop_all(DropReason.SURPLUS)
    ask(harness, [47] * 200)
    assert wanted + 10 < harness.loop.pool.free_cells < largest
    recorder = ask(harness, [*ids[:wanted], 47, 46, 45, 44])
    assert recorder.report is not None
    assert recorder.report.restored_tokens == wanted


@kinds
def test_a_small_budget_is_kept_while_chains_are_merged(kind: MemoryKind) -> None:
    harness = make(kind, cache_bytes=6_400)
    assert harness.cache is not None
    ids = list(HEAD)
    for turn in range(60):
        ids += message(turn)
        ask(harness, ids)
        assert harness.cache.arena.used_bytes <= harness.cache.arena.budget_bytes


@kinds
def test_exact_mode_keeps_its_chunks_apart(kind: MemoryKind) -> None:
    harness = make(kind, exact=True)
    assert harness.cache is not None
    ids = list(HEAD)
    for turn in range(20):
        ids += message(turn)
        ask(harness, ids)
    assert harness.cache.counters.merged_segments == 0


Edit = tuple[int, float, list[int]]
edits = st.tuples(st.integers(0, 5), st.floats(0, 1), st.lists(st.integers(0, 3), min_size=1, max_size=12))
"""Which of the last histories to go on from, where in it, and with what."""


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(MemoryKind)), st.lists(edits, min_size=10, max_size=40))
def test_no_restore_takes_more_than_eight_segments(
    kind: MemoryKind, script: list[tuple[int, float, list[int]]]
) -> None:
    harness = make(kind)
    histories = [HEAD]
    for back, part, tail in script:
        base = histories[-1 - back % len(histories)]
        kept = len(base) - int(part**4 * (len(base) - len(HEAD)))
        ids = [*base[:kept], *tail, 40, 41, 42]
        recorder = ask(harness, ids)
        histories.append([*ids, *recorder.tokens.get(0, [])])
    assert harness.runtime.longest_chain <= CHAIN_SEGMENTS


@pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma3"])
def test_a_merged_chain_of_a_real_model_gives_the_answer_of_a_cold_run(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        plain = conversation(1, 500, *[20] * 24)
        turns = [with_generation_prompt(prompt, turn_start=len(prompt) - 20) for prompt in plain]
        with engine_on(model, cache=True, exact=False) as engine:
            for number, prompt in enumerate(turns):
                (tokens, _), report = ask_real(engine, prompt, str(number))
            assert engine.stats().cache.merged_segments > 0
        with engine_on(model, cache=False, exact=False) as engine:
            (expected, _), _ = ask_real(engine, turns[-1], "cold")
    finally:
        model.close()
    assert report.restored_tokens >= len(plain[-2])
    assert tokens[:FIRST_TOKENS] == expected[:FIRST_TOKENS]
