"""What becomes of a job of the disk tier's threads when it fails in a way that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Failed = Callable[[Exception], None]


@contextmanager
def handing_on(failed: Failed) -> Iterator[None]:
    """What is raised inside goes to ``failed``, to be counted and logged; then the thread goes on behind the block.

    So whoever is told there how the job ended finds it counted.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  (handed on)
        failed(error)
