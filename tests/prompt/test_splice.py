"""Placeholders in a rendered text and what they stand for."""

from __future__ import annotations

import numpy as np

from anchorline.output.meaning import Said
from anchorline.prompt.splice import Span, Splices
from anchorline.prompt.turns import GeneratedTurn


class Counted(str):
    """Text that counts the characters that are copied out of it and its copies."""

    copied = 0

    def replace(self, *given: object) -> Counted:
        return self._copy(str.replace(self, *given))  # type: ignore[arg-type]

    def __getitem__(self, part: object) -> Counted:
        return self._copy(str.__getitem__(self, part))  # type: ignore[index]

    def _copy(self, text: str) -> Counted:
        Counted.copied += len(text)
        return Counted(text)


def spliced(count: int) -> Splices:
    spans, text = [], ""
    for number in range(count):
        said = f"turn {number % 7}"  # some of them are alike
        turn = GeneratedTurn(
            tokens=np.array([number % 7], np.int32), text=said, said=Said(reasoning="", content=said, calls=())
        )
        spans.append(Span(len(text), len(text) + len(said), f"\0{number % 7}\0", turn))
        text += f"{said} and what follows. "
    return Splices(text, tuple(spans))


def test_what_was_put_in_is_shown_again() -> None:
    splices = spliced(20)
    whole = splices.apply(splices.text)
    assert whole.count("\0") == 40
    assert splices.reveal(whole) == splices.text
    half = splices.text[: splices.spans[9].end + 3]
    assert splices.apply(half).count("\0") == 20
    assert splices.reveal(splices.apply(half)) == half


def test_many_turns_are_shown_at_the_price_of_the_text() -> None:
    splices = spliced(500)
    text = Counted(splices.apply(splices.text))
    Counted.copied = 0
    assert splices.reveal(text) == splices.text
    assert Counted.copied <= len(text)
