"""Letters for letters: each position has a permutation in which nothing stays but what is kept."""

from __future__ import annotations

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.record.letters import Escape, Utf8, exchangeable
from anchorline.record.wording import LONGEST, Wording, kept
from tests.record.support import KEY

PLACE = kept("test", "user user_id string")
NOTHING_KEPT = kept("text", "")


@pytest.fixture
def wording() -> Wording:
    return Wording(KEY)


@pytest.mark.parametrize(("before", "stays"), [("", "us"), ("us", "e"), ("user", ""), ("user_", "i"), ("other", "")])
def test_only_letters_that_go_on_towards_a_kept_text_stay(wording: Wording, before: str, stays: str) -> None:
    for letters in (string.ascii_lowercase, string.ascii_uppercase):
        images = [wording.letter(letter, PLACE, before=before, image="") for letter in letters]
        assert sorted(images) == sorted(letters)
        assert {old for old, new in zip(letters, images, strict=True) if old == new} == {
            letter for letter in letters if letter.lower() in stays
        }


def test_digits_become_digits_and_zeros_stay(wording: Wording) -> None:
    images = [wording.letter(digit, NOTHING_KEPT, before="1", image="") for digit in string.digits]
    assert sorted(images) == sorted(string.digits)
    assert [old for old, new in zip(string.digits, images, strict=True) if old == new] == ["0"]


@given(st.text(st.characters(categories=["L", "Nd"], include_characters="ßŉǰİ"), min_size=1, max_size=LONGEST + 5))
def test_a_word_keeps_its_bytes_and_letters_stay_letters(word: str) -> None:
    replaced = Wording(KEY).word(word, NOTHING_KEPT)
    assert [len(letter.encode()) for letter in replaced] == [len(letter.encode()) for letter in word]
    assert [letter.isalpha() for letter in replaced] == [letter.isalpha() for letter in word]
    assert [letter.isdecimal() for letter in replaced] == [letter.isdecimal() for letter in word]


@pytest.mark.parametrize("word", ["пароль", "密码很长", "비밀번호", "سر"])
def test_letters_stay_in_their_script_and_none_is_itself(wording: Wording, word: str) -> None:
    replaced = wording.word(word, NOTHING_KEPT)
    assert [script(letter) for letter in replaced] == [script(letter) for letter in word]
    assert all(old != new for old, new in zip(word, replaced, strict=True))


def script(letter: str) -> str:
    return unicodedata.name(letter).split(" ")[0].split("-")[0]


def test_what_may_stand_for_a_letter() -> None:
    high, low = "é".encode()
    others = exchangeable(Utf8(), (high,), low)
    assert "".join(bytes((high, other)).decode() for other in others) == "".join(
        chr(code) for code in range(0xC0, 0x100) if chr(code) not in "×÷"
    )
    assert exchangeable(Utf8(), (), high) == (high,)
    assert exchangeable(Escape(), (0, 0, 2), 2) == (2,), 'an escaped " stays one'
    assert len(exchangeable(Escape(), (0x5,), 0xB)) == 16
