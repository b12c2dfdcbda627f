"""Words for words: replacements that begin alike exactly as far as the words do.

Letter i of a word is exchanged by a permutation that a secret key and the letters before it give. Two words therefore
share as many bytes at their beginning as their replacements do, and an equal word has an equal replacement. No letter
is exchanged for itself. Case and number of bytes stay, digits become digits and a zero stays a zero.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorline.record.letters import Escape, Units, Utf8, exchangeable

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "123456789"
BASE64 = LETTERS.upper() + LETTERS + "0" + DIGITS + "+/"
_VALUES = {character: value for value, character in enumerate(BASE64)}

LONGEST = 16
"""After so many letters a word is taken for a new one, so that work stays linear in its length."""
SHORTEST_AVOIDED = 4
"""A replacement of this many letters or more is no word of the recording, where that can be arranged."""
ATTEMPTS = 32
"""Permutations that are tried to arrange it."""
KEPT_PERMUTATIONS = 1 << 18
KEPT_WORDS = 1 << 17
"""Bounds of what one recording remembers."""
BLOB_STEP = 64
"""Base64 characters that share a piece of noise; a difference shows where it is, and at most so much of what it is."""

_UTF8, _ESCAPE = Utf8(), Escape()


@dataclass(frozen=True, slots=True)
class Kept:
    """Texts of one place that stay as they are; what leaves all of them is replaced from there on.

    ``place`` names the place: its words are exchanged by permutations of their own, in which letters that go on
    towards a kept text stay.
    """

    place: str
    beginnings: frozenset[str]
    unfinished: frozenset[str]
    """Those of ``beginnings`` that go on, and the empty one."""

    def walk(self, text: str) -> int:
        """How many characters of ``text`` follow a kept text."""
        length = 0
        while length < len(text) and text[: length + 1] in self.beginnings:
            length += 1
        return length

    def keeps(self, text: str) -> bool:
        """Whether all of ``text`` stays."""
        return self.walk(text) == len(text)

    def fixed(self, before: str) -> str:
        """ASCII letters and digits, lower case, that go on towards a kept text after ``before``."""
        return "".join(
            character
            for character in LETTERS + DIGITS
            if before + character in self.beginnings or before + character.upper() in self.beginnings
        )


def kept(place: str, texts: str) -> Kept:
    """Keeps ``texts``, which white space separates, at ``place``."""
    beginnings = frozenset(text[:length] for text in texts.split() for length in range(1, len(text) + 1))
    return Kept(place, beginnings, frozenset(beginning[:-1] for beginning in beginnings))


class Wording:
    """The replacements of one recording. Not thread-safe; remembers what it gave, within bounds."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: set[str] = set()
        self._permutations: dict[tuple[str, str, str], str] = {}
        self._words: dict[tuple[str, str], str] = {}

    def avoid(self, words: Iterable[str]) -> None:
        """Take no word of these as a replacement, where permutations are still to be drawn."""
        for word in words:
            if len(self._known) < KEPT_WORDS:
                self._known.add(word.lower())

    def word(self, word: str, place: Kept) -> str:
        """The replacement of a run of letters, or of digits."""
        found = self._words.get((place.place, word))
        if found is None:
            found = "".join(self._begun(word[start : start + LONGEST], place) for start in range(0, len(word), LONGEST))
            if len(self._words) < KEPT_WORDS and len(word) <= LONGEST:
                self._words[place.place, word] = found
        return found

    def letter(self, letter: str, place: Kept, *, before: str, image: str) -> str:
        """The replacement of one character that ``before`` precedes; ``image`` is the replacement of ``before``."""
        if not letter.isascii():
            return self._rare(letter, place, before)
        lower = letter.lower()
        alphabet = LETTERS if lower in LETTERS else DIGITS if lower in DIGITS else ""
        if not alphabet:
            return letter
        replaced = self._permutation(place, alphabet, before, image)[alphabet.index(lower)]
        return replaced.upper() if letter.isupper() else replaced

    def escape(self, digits: str, place: Kept, *, before: str) -> str:
        """The digits of another letter's escape; ``digits`` may be the first few of the four."""
        units = self._exchanged(_ESCAPE, tuple(int(digit, 16) for digit in digits), place, before)
        spelled = (f"{unit:x}" for unit in units)
        return "".join(new.upper() if old.isupper() else new for old, new in zip(digits, spelled, strict=True))

    def blob(self, text: str) -> str:
        """Base64 of the same length that holds nothing of ``text``'s, and differs from where ``text`` does."""
        parts = []
        state = b""
        for start in range(0, len(text), BLOB_STEP):
            step = text[start : start + BLOB_STEP]
            shifts = self._stream("blob", state.hex(), size=BLOB_STEP)
            parts += [
                BASE64[(_VALUES[character] + shift) % 64] if character in _VALUES else character
                for character, shift in zip(step, shifts, strict=False)
            ]
            state = hashlib.sha256(state + step.encode()).digest()
        return "".join(parts)

    def _begun(self, word: str, place: Kept) -> str:
        image = ""
        for position, letter in enumerate(word):
            image += self.letter(letter, place, before=word[:position].lower(), image=image.lower())
        return image

    def _rare(self, letter: str, place: Kept, before: str) -> str:
        units = tuple(letter.encode())
        return bytes(self._exchanged(_UTF8, units, place, before)).decode()

    def _exchanged(self, writing: Utf8 | Escape, units: Units, place: Kept, before: str) -> Units:
        exchanged = []
        for position, unit in enumerate(units):
            others = exchangeable(writing, units[:position], unit)
            order = self._cycle(place.place, f"{before} {units[:position]}", size=len(others))
            exchanged.append(others[order[others.index(unit)]])
        return tuple(exchanged)

    def _permutation(self, place: Kept, alphabet: str, before: str, image: str) -> str:
        """What the letters of ``alphabet`` become after ``before``."""
        where = (place.place, alphabet, before)
        found = self._permutations.get(where)
        if found is None:
            full = len(self._permutations) >= KEPT_PERMUTATIONS
            found = self._draw(place, alphabet, before, image, attempts=1 if full else ATTEMPTS)
            if not full:
                self._permutations[where] = found
        return found

    def _draw(self, place: Kept, alphabet: str, before: str, image: str, *, attempts: int) -> str:
        """The first permutation that makes no word of the recording out of another, or the last one tried."""
        fixed = place.fixed(before)
        free = [letter for letter in alphabet if letter not in fixed]
        drawn = alphabet
        for attempt in range(attempts):
            order = self._cycle(place.place, f"{before} {alphabet[0]}{attempt}", size=len(free))
            images = {letter: free[index] for letter, index in zip(free, order, strict=True)}
            drawn = "".join(images.get(letter, letter) for letter in alphabet)
            if not self._makes_words(alphabet, drawn, before, image):
                break
        return drawn

    def _makes_words(self, alphabet: str, drawn: str, before: str, image: str) -> bool:
        if len(before) + 1 < SHORTEST_AVOIDED:
            return False
        pairs = zip(alphabet, drawn, strict=True)
        return any(before + letter in self._known and image + other in self._known for letter, other in pairs)

    def _cycle(self, *names: str, size: int) -> Sequence[int]:
        """A permutation of range(size) in one cycle, so that nothing stays at its place (Sattolo)."""
        order = list(range(size))
        numbers = self._stream("cycle", *names, size=2 * size)
        for last in range(size - 1, 0, -1):
            chosen = int.from_bytes(numbers[2 * last : 2 * last + 2]) % last
            order[last], order[chosen] = order[chosen], order[last]
        return order

    def _stream(self, *names: str, size: int) -> bytes:
        """Bytes that only the key's owner can tell from noise."""
        return hashlib.shake_128(self._key + "\0".join(names).encode()).digest(size)


_WORD = re.compile(r"[^\W\d_]+")


def words_of(text: str) -> Iterable[str]:
    """The words of a text that are long enough to be told from chance."""
    return (word for word in _WORD.findall(text) if len(word) >= SHORTEST_AVOIDED)
