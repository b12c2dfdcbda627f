from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.tokens import common_prefix


@given(st.integers(0, 600), st.integers(0, 600), st.integers(0, 600))
def test_common_prefix_is_where_ids_first_differ(left_size: int, right_size: int, differs_at: int) -> None:
    left = np.arange(left_size, dtype=np.int32)
    right = np.arange(right_size, dtype=np.int32)
    right[differs_at:] += 1000
    assert common_prefix(left, right) == min(left_size, right_size, differs_at)


def test_equal_ids_after_the_first_difference_do_not_count() -> None:
    left = np.zeros(300, dtype=np.int32)
    right = left.copy()
    right[200] = 1
    assert common_prefix(left, right) == 200
