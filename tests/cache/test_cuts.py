from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.cuts import PIECE_TOKENS_MIN, chunk_ends, piece_ends, state_ends
from anchorline.cache.prompt import Cut, CutKind, Prompt
from tests.support.fake_runtime import tokens_of


def prompt_of(length: int, *cuts: tuple[int, CutKind]) -> Prompt:
    return Prompt(tokens=tokens_of(list(range(length))), cuts=tuple(Cut(position, kind) for position, kind in cuts))


def test_pieces_end_at_the_head_and_before_the_reply_and_at_spaced_messages() -> None:
    prompt = prompt_of(
        1000,
        (300, CutKind.HEAD),
        (350, CutKind.MESSAGE),
        (300 + PIECE_TOKENS_MIN, CutKind.MESSAGE),
        (990, CutKind.GENERATION),
    )
    assert piece_ends(prompt, 0, 1010, longest=9999) == [300, 300 + PIECE_TOKENS_MIN, 990, 1010]
    assert piece_ends(prompt, 400, 1010, longest=9999) == [990, 1010]
    assert piece_ends(prompt, 0, 320, longest=9999) == [300, 320]
    assert piece_ends(prompt, 1010, 1010, longest=9999) == []


def test_long_pieces_are_subdivided() -> None:
    prompt = prompt_of(1000, (450, CutKind.HEAD), (990, CutKind.GENERATION))
    assert piece_ends(prompt, 100, 1000, longest=400) == [450, 850, 990, 1000]
    assert piece_ends(prompt, 0, 450, longest=400) == [400, 450]


@given(st.integers(1, 300), st.sets(st.integers(1, 300), max_size=8), st.integers(1, 50))
def test_chunks_end_at_every_cut_and_never_exceed_the_batch(length: int, cuts: set[int], batch: int) -> None:
    prompt = prompt_of(length, *((cut, CutKind.MESSAGE) for cut in sorted(cuts)))
    ends = chunk_ends(prompt, batch)
    assert ends == sorted(set(ends))
    assert ends[-1] == length
    assert all(high - low <= batch for low, high in zip([0, *ends], ends, strict=False))
    assert {cut for cut in cuts if cut < length} <= set(ends)


@given(st.integers(1, 300), st.sets(st.integers(1, 300), max_size=8), st.integers(0, 300), st.integers(1, 80))
def test_states_are_captured_at_the_cuts_and_now_and_then_between(
    length: int, cuts: set[int], start: int, every: int
) -> None:
    prompt = prompt_of(length, *((cut, CutKind.GENERATION) for cut in sorted(cuts)))
    ends = state_ends(prompt, start, every=every)
    assert ends == sorted(set(ends))
    assert all(start < end < length for end in ends)
    assert {cut for cut in cuts if start < cut < length} <= set(ends)
    assert all(high - low <= every for low, high in zip([start, *ends], [*ends, max(length - 1, start)], strict=True))


def test_of_the_messages_only_the_last_end_is_captured() -> None:
    prompt = prompt_of(
        500, (100, CutKind.HEAD), (200, CutKind.MESSAGE), (300, CutKind.MESSAGE), (490, CutKind.GENERATION)
    )
    assert state_ends(prompt, 0, every=1000) == [100, 300, 490]
    assert state_ends(prompt, 300, every=1000) == [490]
