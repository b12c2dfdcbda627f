"""Stop strings are found however the text is split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.output.stops import StopFinder

letters = st.text(alphabet="ab<|é", max_size=24)
stop_strings = st.lists(st.text(alphabet="ab<|é", min_size=1, max_size=5), max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first prefix of the text that ends with a stop string decides."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            hit = max(found, key=len)
            return text[: end - len(hit)], hit
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    shown = "".join(finder.feed(piece) for piece in pieces)
    return shown + finder.flush(), finder.hit


@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(letters, max_size=12), stops=stop_strings)
def test_any_split_gives_what_a_search_in_the_whole_gives(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == expected("".join(pieces), stops)


@settings(max_examples=300, deadline=None)
@given(text=letters, stops=stop_strings)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = finder.feed(text)
    if finder.hit is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        for end in range(len(shown)):
            assert not any(len(text) - end < len(stop) and stop.startswith(text[end:]) for stop in stops)


@pytest.mark.parametrize(
    ("text", "stops", "answer"),
    [
        ("one END two", ["END"], ("one ", "END")),
        ("xabcd", ["ab", "xabc"], ("x", "ab")),  # complete first
        ("xabc", ["abc", "bc", "c"], ("x", "abc")),  # complete at the same character: the longest
        ("aab", ["ab"], ("a", "ab")),
        ("aaab", ["aab"], ("a", "aab")),
        ("END", ["END"], ("", "END")),
        ("EN", ["END"], ("EN", None)),
        ("text", [], ("text", None)),
    ],
)
def test_examples_letter_by_letter(text: str, stops: list[str], answer: tuple[str, str | None]) -> None:
    assert run(list(text), stops) == answer
    assert run([text], stops) == answer


def test_nothing_comes_after_a_hit() -> None:
    finder = StopFinder(["END"])
    assert finder.feed("a END b") == "a "
    assert finder.feed("more END") == ""
    assert finder.flush() == ""


def test_text_that_turns_out_to_be_no_stop_string_is_shown_at_once() -> None:
    finder = StopFinder(["<|im_end|>"])
    assert finder.feed("a<|im") == "a"
    assert finder.feed("age|>") == "<|image|>"
