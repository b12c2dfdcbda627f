"""Text to ids and back, and that no text becomes a control token."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.config import ModelConfig
from anchorline.errors import EngineFailure
from anchorline.llama.interface import Tokenizer
from anchorline.llama.model import Model, load_model
from anchorline.llama.tokenizer import LlamaTokenizer
from tests.llama.vocabularies import spm_words, vocabulary

TEXTS = [
    "",
    "a",
    "Hello, world!",
    "  two  spaces\n\n\ttab ",
    "naïve — 東京 🎉👩‍👩‍👧",
    "def f(x):\n    return x**2\n",
    "\x00\x07 nul",
]


@pytest.fixture(scope="module")
def tokenizer(tiny_smollm2_model: Model) -> LlamaTokenizer:
    return tiny_smollm2_model.tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: LlamaTokenizer, text: str) -> None:
    ids = tokenizer.tokenize(text)
    assert ids.dtype == np.int32
    assert ids.flags.c_contiguous
    assert tokenizer.detokenize(ids) == text.encode()


@given(text=st.text(max_size=200))
def test_any_text_round_trips(tiny_smollm2_model: Model, text: str) -> None:
    """But for bytes that this vocabulary lacks altogether (a few control characters, U+40000 and up)."""
    tokenizer = tiny_smollm2_model.tokenizer
    known = {tokenizer.special_piece(token) for token in range(600)}
    kept = b"".join(bytes([byte]) for byte in text.encode() if bytes([byte]) in known)
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == kept


def test_the_vocabulary_lacks_few_bytes(tokenizer: LlamaTokenizer) -> None:
    known = {tokenizer.special_piece(token) for token in range(600)}
    assert all(bytes([byte]) in known for byte in range(32, 127))
    assert sum(bytes([byte]) in known for byte in range(256)) > 220


@given(
    parts=st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im", "_start|>", " ", "user", "\n", "|>"])
    )
)
def test_no_text_becomes_a_control_token(tiny_smollm2_model: Model, parts: list[str]) -> None:
    tokenizer = tiny_smollm2_model.tokenizer
    text = "".join(parts)
    ids = tokenizer.tokenize(text)
    assert not set(ids.tolist()) & set(tokenizer.control_tokens.values())
    assert tokenizer.detokenize(ids) == text.encode()


def test_control_tokens_by_attribute(tokenizer: LlamaTokenizer) -> None:
    typed: Tokenizer = tokenizer
    control = typed.control_tokens
    assert control["<|im_start|>"] == 1
    assert control["<|im_end|>"] == 2
    assert typed.piece(1) == b""
    assert typed.special_piece(1) == b"<|im_start|>"
    assert typed.detokenize([1, 2]) == b"<|im_start|><|im_end|>"
    assert "Hello" not in control
    assert 2 in tokenizer.end_of_generation


def test_special_ids(tokenizer: LlamaTokenizer) -> None:
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (1, 2, False)
    assert tokenizer.vocab_size == 49152


def test_a_lone_surrogate_does_not_fail(tokenizer: LlamaTokenizer) -> None:
    assert tokenizer.detokenize(tokenizer.tokenize("a\ud800b")) == b"a?b"


@pytest.mark.parametrize("token", [-1, 49152])
def test_ids_outside_the_vocabulary(tokenizer: LlamaTokenizer, token: int) -> None:
    for method in (tokenizer.piece, tokenizer.special_piece):
        with pytest.raises(IndexError, match="outside the vocabulary"):
            method(token)


def test_long_text(tokenizer: LlamaTokenizer) -> None:
    text = "The quick brown fox. " * 5000
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text.encode()


def test_threads_see_the_same_ids_and_pieces(tiny_smollm2_path: Path) -> None:
    model = load_model(ModelConfig(model=str(tiny_smollm2_path)))
    tokenizer = model.tokenizer
    texts = [f"{text} {index}" for index in range(20) for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda text: tokenizer.detokenize(tokenizer.tokenize(text)), texts))
    assert several == [text.encode() for text in texts]
    model.close()
    with pytest.raises(EngineFailure, match="closed"):
        tokenizer.tokenize("x")


def test_the_hashing_test_vocabulary_gives_no_control_ids(test_llama_model: Model) -> None:
    tokenizer = test_llama_model.tokenizer
    text = bytes(np.random.default_rng(0).integers(32, 127, 20000, np.uint8)).decode()
    ids = tokenizer.tokenize(text)
    control = set(tokenizer.control_tokens.values())
    assert control == {509, 510, 511}
    assert ids.size == 4000
    assert not set(ids.tolist()) & control
    assert tokenizer.special_piece(511) == b"<|im_end|>"
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (None, 511, False)


@given(text=st.text(max_size=200) | st.text(alphabet=' etin":{}<|_>ms\n'))
def test_the_spelling_test_vocabulary_spells_any_text(spelling_model: Model, text: str) -> None:
    tokenizer = spelling_model.tokenizer
    ids = tokenizer.tokenize(text)
    assert tokenizer.detokenize(ids) == text.encode()
    assert not set(ids.tolist()) & set(tokenizer.control_tokens.values())


def test_the_spelling_test_vocabulary_joins_pairs_and_keeps_the_control_tokens(spelling_model: Model) -> None:
    tokenizer = spelling_model.tokenizer
    ids = tokenizer.tokenize('{"type": "string", "description": "The name of the object"}')
    assert ids.size < 20
    assert tokenizer.control_tokens == {"<|endoftext|>": 509, "<|im_start|>": 510, "<|im_end|>": 511}
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (509, 511, False)
    assert tokenizer.end_of_generation == {509, 511}


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTokenizer]:
    """A SentencePiece vocabulary with byte fallback, a control and a user-defined token."""
    with vocabulary(tmp_path_factory.mktemp("spm"), spm_words(), model="llama") as made:
        yield LlamaTokenizer(made)


def test_spm_text_gets_its_space_and_falls_back_to_bytes(spm: LlamaTokenizer) -> None:
    ids = spm.tokenize("ab é")
    assert [spm.special_piece(int(token)) for token in ids] == [b" ab", b" ", b"\xc3", b"\xa9"]
    assert spm.detokenize(ids) == " ab é".encode()
    assert spm.adds_bos


def test_spm_control_tokens_stay_text_and_user_defined_ones_do_not(spm: LlamaTokenizer) -> None:
    assert set(spm.control_tokens) == {"<unk>", "<s>", "</s>"}
    ids = spm.tokenize("ab</s>[TOOL]ab").tolist()
    assert not set(ids) & set(spm.control_tokens.values())
    tool = 3 + 256
    assert tool in ids
    # What follows a recognised token starts with a space again, as in llama.cpp.
    assert spm.detokenize(ids) == b" ab</s>[TOOL] ab"
    assert spm.piece(tool) == b"[TOOL]"
