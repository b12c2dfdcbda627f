"""The memo forgets what was used longest ago and keeps to its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.prompt.memo import ENTRY_BYTES, ByteMemo


def test_the_least_recently_used_goes_first() -> None:
    memo: ByteMemo[str, int] = ByteMemo(4 * ENTRY_BYTES)
    for number, name in enumerate("abcd"):
        memo.put(name, number, 0)
    assert memo.get("a") == 0
    memo.put("e", 4, 0)
    assert [memo.get(name) for name in "abcde"] == [0, None, 2, 3, 4]


def test_what_is_too_large_is_not_kept_and_drops_what_was_there() -> None:
    memo: ByteMemo[str, int] = ByteMemo(40 * ENTRY_BYTES)
    memo.put("a", 1, 0)
    memo.put("a", 2, 20 * ENTRY_BYTES)
    assert memo.get("a") is None
    assert memo.used_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * ENTRY_BYTES))))
def test_the_bytes_are_counted_and_bounded(puts: list[tuple[int, int]]) -> None:
    memo: ByteMemo[int, int] = ByteMemo(10 * ENTRY_BYTES)
    for key, size in puts:
        memo.put(key, size, size)
        assert memo.used_bytes <= 10 * ENTRY_BYTES
    kept = [size for size in (memo.get(key) for key in range(10)) if size is not None]
    assert memo.used_bytes == sum(size + ENTRY_BYTES for size in kept)
    assert len(memo) == len(kept)
