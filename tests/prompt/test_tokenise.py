"""Tokenising with the memo gives what tokenising from scratch gives, for less."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.llama.interface import TokenArray, Tokenizer
from anchorline.llama.model import Model
from anchorline.llama.tokenizer import LlamaTokenizer
from anchorline.prompt.tokenise import LOOK_BACK_TOKENS, PromptTokenizer, common_characters, common_tokens
from tests.llama.vocabularies import spm_words, vocabulary
from tests.prompt.vocabulary import FIRST_CONTROL, ToyTokenizer

CONTROL = ("<|im_start|>", "<|im_end|>", "<|im_start|>x", "<s>", ">>Q<<", "ab>")
GUARD = "¸"
STRIPS = {"<s>": (False, True), "<|im_end|>": (True, False), "ab>": (True, True)}

pieces = st.sampled_from(
    [*CONTROL, "<", "|im_", "start|>", "the ", "abc", "ab", "c", "\n", "\n\n", "user\n", "x", "é", " ", GUARD]
)
toys = st.sampled_from([{}, STRIPS]).map(lambda strips: ToyTokenizer(CONTROL, strips=strips))
texts = st.lists(pieces, max_size=30).map("".join)


@st.composite
def edited_texts(draw: st.DrawFn) -> list[str]:
    """A text and what follows from it by changes anywhere: appended, cut short, replaced inside."""
    text = draw(texts)
    found = [text]
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, len(text)))
        text = text[:start] + draw(texts) + text[end:]
        found.append(text)
    return found


@settings(max_examples=300, deadline=None)
@given(toy=toys, history=edited_texts(), guards=st.lists(st.sampled_from(["", GUARD]), min_size=7, max_size=7))
def test_ids_equal_those_from_scratch(toy: ToyTokenizer, history: list[str], guards: list[str]) -> None:
    kept = PromptTokenizer(toy)
    for text, guard in zip(history, guards, strict=False):
        fresh = PromptTokenizer(toy).tokenize(text, guard)
        made = kept.tokenize(text, guard)
        assert made.tokens.tolist() == fresh.tokens.tolist()
        assert (made.starts, made.ends, made.counts) == (fresh.starts, fresh.ends, fresh.counts)


@pytest.mark.parametrize("rest", ["x", "y", "xx", ""])
def test_a_control_token_at_the_difference_is_read_anew(rest: str) -> None:
    kept = PromptTokenizer(ToyTokenizer(CONTROL))
    kept.tokenize("abc<|im_start|>")
    text = "abc<|im_start|>" + rest
    assert kept.tokenize(text).tokens.tolist() == PromptTokenizer(ToyTokenizer(CONTROL)).tokenize(text).tokens.tolist()


def test_texts_with_another_guard_are_not_taken_over() -> None:
    kept = PromptTokenizer(ToyTokenizer(CONTROL))
    text = f"{GUARD}abc<s>" + "the " * 10
    assert kept.tokenize(text, "").tokens.size == kept.tokenize(text, GUARD).tokens.size + 2
    assert kept.tokenize(text + "x", GUARD).tokens.size == kept.tokenize(text, GUARD).tokens.size + 1


@settings(max_examples=100, deadline=None)
@given(known=st.lists(texts, min_size=1, max_size=8), text=texts)
def test_the_closest_text_is_the_one_with_the_longest_common_beginning(known: list[str], text: str) -> None:
    tokenizer = PromptTokenizer(ToyTokenizer(CONTROL))
    for other in known:
        tokenizer.tokenize(other)
    kept = [entry.text for entry in tokenizer._entries.values()]
    assert tokenizer._closest(("", "", text))[1] == max(common_characters(other, text) for other in kept)


@settings(max_examples=150, deadline=None)
@given(toy=toys, text=texts, guard=st.sampled_from(["", GUARD]))
def test_a_position_is_where_the_ids_of_the_beginning_stop_agreeing(toy: ToyTokenizer, text: str, guard: str) -> None:
    tokenizer = PromptTokenizer(toy)
    whole = tokenizer.tokenize(text, guard)
    for character in range(len(text) + 1):
        inside = [s for s, e in zip(whole.starts, whole.ends, strict=True) if s < character < e]
        beginning = text[: inside[0] if inside else character]
        part = PromptTokenizer(toy).tokenize(beginning, guard)
        assert tokenizer.position(whole, character) == common_tokens(part.tokens, whole.tokens)


WORDS = ("ab", " ab", "a", " the", " file", "\n", "\n\n", "  ", "b" * 40, "é", " 日本", "\U0001f642", "0", "}},{", "¸")
LONG = "".join(random.Random(0).choices(WORDS, k=2000))
TAIL_BYTES = 12 * LOOK_BACK_TOKENS


@pytest.fixture(params=["toy", "byte pairs", "sentence pieces"])
def tokenizer(request: pytest.FixtureRequest, smollm2_model: Model, tmp_path: Path) -> Iterator[Tokenizer]:
    if request.param == "sentence pieces":  # puts a space in front of every text
        with vocabulary(tmp_path, spm_words(), model="llama") as vocab:
            yield LlamaTokenizer(vocab)
    else:
        yield smollm2_model.tokenizer if request.param == "byte pairs" else ToyTokenizer(CONTROL)


@pytest.mark.parametrize("guard", ["", GUARD])
def test_a_position_far_behind_a_control_token_is_found_from_the_tokens_before_it(
    tokenizer: Tokenizer, guard: str
) -> None:
    kept = PromptTokenizer(tokenizer)
    whole = kept.tokenize(LONG, guard)
    assert not whole.ends
    for character in range(len(LONG) // 2, len(LONG), 37):
        before = kept.tokenized_characters
        part = PromptTokenizer(tokenizer).tokenize(LONG[:character], guard)
        assert kept.position(whole, character) == common_tokens(part.tokens, whole.tokens)
        assert kept.tokenized_characters - before <= TAIL_BYTES


def test_a_beginning_whose_tokens_say_nothing_of_the_whole_is_read_from_its_start() -> None:
    """As where one id stands for bytes that are no text, or all ids hang on the end."""
    for tokenizer, words in ((Unspelt(CONTROL), "the " * 200), (FromTheEnd(CONTROL), "the abc " * 100)):
        kept = PromptTokenizer(tokenizer)
        whole = kept.tokenize(words)
        for character in range(len(words) // 2, len(words), 3):
            part = tokenizer.tokenize(words[:character])
            assert kept.position(whole, character) == common_tokens(part, whole.tokens)


class Unspelt(ToyTokenizer):
    """Ids whose pieces do not spell the text."""

    def special_piece(self, token: int) -> bytes:
        return b"?"


class FromTheEnd(ToyTokenizer):
    """Pairs of bytes are one id, counted from the end of the text."""

    def tokenize(self, text: str) -> TokenArray:
        data = text.encode()
        first = len(data) % 2
        pairs = [FIRST_CONTROL + 100 + 256 * data[i] + data[i + 1] for i in range(first, len(data), 2)]
        return np.array([*data[:first], *pairs], dtype=np.int32)

    def special_piece(self, token: int) -> bytes:
        pair = token - FIRST_CONTROL - 100
        return bytes([token]) if pair < 0 else bytes(divmod(pair, 256))


def test_white_space_next_to_a_token_that_strips_it_is_dropped() -> None:
    toy = ToyTokenizer(CONTROL, strips=STRIPS)
    tokenizer = PromptTokenizer(toy)
    for text, guard, expected in (
        ("<s> \n\t c \v<|im_end|> c", "", "<s>c<|im_end|> c"),
        (" <s><|im_end|> c ab> \r\f", "", " <s><|im_end|> cab>"),
        # The guard is no part of the text: what it keeps apart is stripped as if it were not there.
        (f"<s>{GUARD} {GUARD}c", GUARD, "<s>c"),
        # Other white space than that of ASCII stays.
        ("<s>\u00a0c", "", "<s>\u00a0c"),
    ):
        assert toy.detokenize(tokenizer.tokenize(text, guard).tokens) == expected.encode()


def test_white_space_is_dropped_after_a_token_that_was_taken_over() -> None:
    toy = ToyTokenizer(CONTROL, strips=STRIPS)
    kept = PromptTokenizer(toy)
    kept.tokenize("<s>" + "\n" * 20)
    assert toy.detokenize(kept.tokenize("<s>" + "\n" * 20 + "x").tokens) == b"<s>x"


def test_a_position_after_dropped_white_space() -> None:
    tokenizer = PromptTokenizer(ToyTokenizer(CONTROL, strips=STRIPS))
    whole = tokenizer.tokenize("<s> c")
    assert [tokenizer.position(whole, character) for character in range(6)] == [0, 0, 0, 1, 1, 2]
    whole = tokenizer.tokenize("x  <|im_end|>")
    assert [tokenizer.position(whole, character) for character in (1, 2, 3, 13)] == [1, 1, 1, 2]


def test_a_position_inside_a_control_token_is_its_start() -> None:
    tokenizer = PromptTokenizer(ToyTokenizer(CONTROL))
    whole = tokenizer.tokenize("x ab>c")  # " a" is one token where it is text
    assert [tokenizer.position(whole, character) for character in range(7)] == [0, 1, 2, 2, 2, 3, 4]


@settings(max_examples=300, deadline=None)
@given(a=texts, b=texts, shared=texts, repeat=st.sampled_from([1, 2000]))
def test_common_characters(a: str, b: str, shared: str, repeat: int) -> None:
    a, b = shared * repeat + a, shared * repeat + b
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_characters(a, b) == expected


def conversation(turns: int) -> str:
    return "".join(
        f"<|im_start|>user\nthe question number {turn} abc<|im_end|>\n"
        f"<|im_start|>assistant\nan answer {turn}<|im_end|>\n"
        for turn in range(turns)
    )


def test_a_longer_text_costs_only_what_is_new(smollm2_model: Model) -> None:
    tokenizer = PromptTokenizer(smollm2_model.tokenizer)
    tokenizer.tokenize(conversation(200) + "<|im_start|>assistant\n")
    before = tokenizer.tokenized_characters
    text = conversation(201) + "<|im_start|>assistant\n"
    made = tokenizer.tokenize(text)
    assert tokenizer.tokenized_characters - before <= len(conversation(201)) - len(conversation(200))
    assert made.tokens.tolist() == PromptTokenizer(smollm2_model.tokenizer).tokenize(text).tokens.tolist()


def test_branches_of_one_beginning_are_all_remembered() -> None:
    toy = ToyTokenizer(CONTROL)
    tokenizer = PromptTokenizer(toy)
    branches = [conversation(20) + f"<|im_start|>user\n{'x' * n}abc{n}<|im_end|>" for n in range(10)]
    for text in branches:
        tokenizer.tokenize(text)
    calls = toy.calls
    for text in branches:
        tokenizer.tokenize(text + "\n")
    assert toy.calls <= calls + 1  # the new "\n" alone


def test_the_memo_keeps_to_its_bytes() -> None:
    tokenizer = PromptTokenizer(ToyTokenizer(CONTROL), memo_bytes=100_000)
    for turn in range(300):
        tokenizer.tokenize(f"<s>{turn}" + conversation(5))
    assert tokenizer._used_bytes <= 100_000
    assert tokenizer._used_bytes == sum(entry.held_bytes for entry in tokenizer._entries.values())
    assert sorted(tokenizer._entries) == tokenizer._sorted
    assert 10 < len(tokenizer._entries) < 300


def test_a_text_too_large_to_keep_is_tokenised_all_the_same() -> None:
    tokenizer = PromptTokenizer(ToyTokenizer(CONTROL), memo_bytes=2_000)
    made = tokenizer.tokenize(conversation(50))
    assert not tokenizer._entries
    assert made.tokens.size > 50


def test_no_control_tokens_at_all() -> None:
    made = PromptTokenizer(ToyTokenizer(())).tokenize("the <|im_start|>")
    assert made.tokens.size == len("the <|im_start|>") - 3


def test_a_control_text_of_one_character_stays_text() -> None:
    toy = ToyTokenizer(("@", "<s>"))
    assert PromptTokenizer(toy).tokenize("@<s>").tokens.tolist() == [ord("@"), 1001]


def test_hundreds_of_reserved_tokens_are_told_apart() -> None:
    control = [f"<|reserved_{n}|>" for n in range(300)] + ["<|reserved_1"]
    toy = ToyTokenizer(control)
    made = PromptTokenizer(toy).tokenize("".join(control))
    assert made.tokens.tolist() == [1000 + n for n in range(301)]


def test_ids_are_read_only() -> None:
    made = PromptTokenizer(ToyTokenizer(CONTROL)).tokenize("<s>abc")
    with pytest.raises(ValueError, match="read-only"):
        made.tokens[0] = 1
    assert made.tokens.dtype == np.int32
