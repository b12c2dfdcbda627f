"""Our ids of a text with control tokens in it are those that llama.cpp gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.tokenizer import LlamaTokenizer
from anchorline.prompt.tokenise import PromptTokenizer
from tests.llama.vocabularies import bpe_words, llama_ids, spm_words, vocabulary
from tests.prompt.support import assistant, real_builder, system, user

WHITE = ("", " ", "  ", "\n", "\n\n", "\t", " \n ", "\r\n", "\v\f", "\u00a0", "\u2003", "\u3000")
WORDS = (
    "a",
    "ab",
    "Hello",
    "don't",
    "1234",
    "é",
    "東京",
    "🎉👩‍👩‍👧",
    "<|im",
    "_start|>",
    "|>",
    "<",
    "\x00",
    "e\u0301",
    "[TOOL]",
)

white = st.sampled_from(WHITE)
plain = st.one_of(st.sampled_from(WORDS), st.text(max_size=8))


def texts(control: list[str]) -> st.SearchStrategy[str]:
    """Control tokens, white space and words in any order."""
    parts = st.one_of(st.sampled_from(control), white, plain)
    return st.lists(parts, max_size=25).map("".join)


def check(tokenizer: LlamaTokenizer, vocab: Any, text: str) -> None:
    """Both a fresh tokenizer and one that knows a beginning of the text agree with llama.cpp."""
    expected = llama_ids(vocab, text)
    assert PromptTokenizer(tokenizer).tokenize(text).tokens.tolist() == expected
    kept = PromptTokenizer(tokenizer)
    kept.tokenize(text[: len(text) * 2 // 3])
    assert kept.tokenize(text).tokens.tolist() == expected


@pytest.fixture(scope="module")
def vocab(smollm2_model: Model) -> Any:
    return api.llama_model_get_vocab(smollm2_model.handle)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_text(smollm2_model: Model, vocab: Any, data: st.DataObject) -> None:
    tokenizer = smollm2_model.tokenizer
    check(tokenizer, vocab, data.draw(texts(sorted(tokenizer.control_tokens))))


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), white, st.lists(plain), white), max_size=6),
    opening=white,
)
def test_chat_as_templates_write_it(
    smollm2_model: Model, vocab: Any, turns: list[tuple[str, str, list[str], str]], opening: str
) -> None:
    text = opening + "".join(
        f"<|im_start|>{role}\n{left}{''.join(words)}{right}<|im_end|>\n" for role, left, words, right in turns
    )
    check(smollm2_model.tokenizer, vocab, text + "<|im_start|>assistant\n")


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(st.text(max_size=60).filter(lambda text: "<" not in text), min_size=1, max_size=5))
def test_a_rendered_conversation(smollm2_model: Model, vocab: Any, contents: list[str]) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    messages = [system("Be kind."), user("x")]
    for content in contents:
        messages += [assistant(content), user(content)]
    assert builder.chat(messages).prompt.tokens.tolist() == llama_ids(vocab, builder.render(messages))


PHI_CONTROL = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", "<|"]


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LlamaTokenizer, Any]]:
    """A vocabulary that llama.cpp takes for Phi-3's: most of its control tokens strip what is right of them."""
    words = spm_words(PHI_CONTROL)
    with vocabulary(tmp_path_factory.mktemp("phi"), words, model="llama", name="Phi-3 small") as made:
        yield LlamaTokenizer(made), made


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LlamaTokenizer, Any]]:
    """A vocabulary with a token that strips what is left of it."""
    words = bpe_words(["<s>", "<mask>"])
    with vocabulary(tmp_path_factory.mktemp("jina"), words, model="gpt2", pre="jina-v2-de") as made:
        yield LlamaTokenizer(made), made


def test_which_tokens_strip(phi: tuple[LlamaTokenizer, Any], jina: tuple[LlamaTokenizer, Any]) -> None:
    right = ["</s>", "[TOOL]", *PHI_CONTROL[1:]]
    assert dict(phi[0].strips) == dict.fromkeys(right, (False, True))
    assert dict(jina[0].strips) == {"<mask>": (True, False)}


def test_white_space_is_dropped_right_of_a_token(phi: tuple[LlamaTokenizer, Any]) -> None:
    tokenizer, made = phi
    text = "<|user|>\n ab <|end|>\n\n<|assistant|>\n"
    check(tokenizer, made, text)
    ids = PromptTokenizer(tokenizer).tokenize(text).tokens
    assert tokenizer.detokenize(ids) == b"<|user|> ab <|end|><|assistant|>"


def test_white_space_is_dropped_left_of_a_token(jina: tuple[LlamaTokenizer, Any]) -> None:
    tokenizer, made = jina
    text = "<s> a \n\t<mask> ab"
    check(tokenizer, made, text)
    assert tokenizer.detokenize(PromptTokenizer(tokenizer).tokenize(text).tokens) == b"<s> a<mask> ab"


@settings(max_examples=300, deadline=None)
@given(text=texts([*PHI_CONTROL, "<s>", "</s>", "<unk>"]))
def test_any_text_where_tokens_strip_the_right(phi: tuple[LlamaTokenizer, Any], text: str) -> None:
    check(*phi, text)


@settings(max_examples=200, deadline=None)
@given(text=texts(["<s>", "<mask>"]))
def test_any_text_where_a_token_strips_the_left(jina: tuple[LlamaTokenizer, Any], text: str) -> None:
    check(*jina, text)
