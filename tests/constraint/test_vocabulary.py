"""Real vocabularies under a grammar: every text is spelled, control tokens are never taken for text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.spec import Choices, Regex
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.errors import RequestError
from anchorline.limits import Limits
from anchorline.llama.interface import TokenConstraint
from anchorline.llama.model import Model
from anchorline.llama.tokenizer import LlamaTokenizer
from tests.constraint.support import compiled, schema
from tests.llama.vocabularies import spm_words, vocabulary

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "born": {"type": "integer", "maximum": 9999}},
    "required": ["name", "born"],
    "additionalProperties": False,
}


def compiler_for(tokenizer: LlamaTokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(Vocabulary(tokenizer, end_of_generation=tokenizer.end_of_generation), Limits())


def spell(constraint: TokenConstraint, tokenizer: LlamaTokenizer, seed: int) -> str:
    """A text of random allowed tokens."""
    chosen, mask, tokens = random.Random(seed), constraint.start(), list[int]()
    while True:
        allowed = mask.allowed().tolist()
        token = chosen.choice(allowed)
        mask.accept(token)
        if token in tokenizer.end_of_generation:
            return tokenizer.detokenize(tokens).decode()
        tokens.append(token)


@pytest.mark.parametrize("seed", range(5))
def test_a_byte_pair_vocabulary(tiny_smollm2_model: Model, seed: int) -> None:
    tokenizer = tiny_smollm2_model.tokenizer
    constraint = compiled(compiler_for(tokenizer), schema(PERSON))
    value = json.loads(spell(constraint, tokenizer, seed))
    assert set(value) == {"name", "born"}


def test_only_tokens_that_end_a_reply_are_left_at_the_end(tiny_smollm2_model: Model) -> None:
    tokenizer = tiny_smollm2_model.tokenizer
    mask = compiled(compiler_for(tokenizer), Choices(texts=("yes",), field="choice")).start()
    for token in tokenizer.tokenize("yes").tolist():
        mask.accept(token)
    assert set(mask.allowed().tolist()) == set(tokenizer.end_of_generation)


def test_text_is_never_a_control_token(tiny_smollm2_model: Model) -> None:
    tokenizer = tiny_smollm2_model.tokenizer
    mask = compiled(compiler_for(tokenizer), Regex(pattern="(?s:.*)", field="regex")).start()
    special = set(tokenizer.control_tokens.values())
    assert special & set(mask.allowed().tolist()) == set(tokenizer.end_of_generation)


def test_forced_text_gets_no_space_before_it(tmp_path: Path) -> None:
    """SentencePiece puts one before every text that it tokenises."""
    with vocabulary(tmp_path, spm_words(["<|end|>"]), model="llama") as vocab:
        tokenizer = LlamaTokenizer(vocab)
        constraint = compiled(compiler_for(tokenizer), Choices(texts=("ab a ab", 'b "\u00e9"'), field="choice"))
        texts = {spell(constraint, tokenizer, seed) for seed in range(8)}
        assert texts == {"ab a ab", 'b "\u00e9"'}


@pytest.mark.parametrize("words", [("v0", "v1"), ("yes", "no")])
def test_what_the_vocabulary_cannot_spell_is_refused(test_llama_model: Model, words: tuple[str, ...]) -> None:
    compiler = compiler_for(test_llama_model.tokenizer)
    compiled(compiler, schema({"enum": [0, 1]}))
    with pytest.raises(RequestError, match="no text of this model's tokens"):
        compiled(compiler, schema({"enum": list(words)}))
