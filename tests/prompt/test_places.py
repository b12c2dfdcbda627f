"""Where a prompt first differs: the message, and the byte of what the template writes for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anchorline.api.explanation import Spelling, explain
from anchorline.cache.difference import find_difference
from anchorline.cache.prompt import Part, Prompt
from anchorline.llama.interface import Tokenizer
from anchorline.llama.model import Model
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.tokenise import common_characters, common_tokens
from tests.api.test_replies import REPORT
from tests.prompt.support import assistant, system, toy_builder, user
from tests.prompt.vocabulary import ToyTokenizer
from tests.support.families import FAMILIES

SAID = ("Be brief.", "First?", "One. – Ünd?", "Second?", "Two.", "Third?")
VOCABULARIES = ("toy", "bpe", "spelling")


@pytest.fixture(params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest, smollm2_model: Model, spelling_model: Model) -> Tokenizer:
    """Of ChatML's control tokens only: another template's turn markers are plain text, and may share a token."""
    real = {"bpe": smollm2_model.tokenizer, "spelling": spelling_model.tokenizer}
    return real.get(request.param) or ToyTokenizer(("<|im_start|>", "<|im_end|>"))


def conversation(*, edited: int | None = None) -> list[dict[str, Any]]:
    words = [text[:2] + "Z" + text[3:] if index == edited else text for index, text in enumerate(SAID)]
    return [system(words[0]), *((user, assistant)[index % 2](text) for index, text in enumerate(words[1:]))]


def shared_bytes(prompt: Prompt, start: int, before: str, tokenizer: Tokenizer) -> int:
    """Bytes of ``before`` in the token at ``start``, which must hold its end unless it begins behind it."""
    written = prompt.tokens[prompt.unwritten_tokens : start].tolist()
    shared = len(before.encode()) - len(b"".join(map(tokenizer.special_piece, written)))
    assert 0 <= shared < len(tokenizer.special_piece(int(prompt.tokens[start])))
    return shared


@pytest.mark.parametrize("edited", range(len(SAID)))
@pytest.mark.parametrize("family", ["lfm2", "gemma", "kimi", "granite", "llama"])
def test_bytes_count_from_the_token_in_which_the_message_begins(family: str, edited: int, tokenizer: Tokenizer) -> None:
    builder = toy_builder(template=ChatTemplate(FAMILIES[family].template), tokenizer=tokenizer)
    earlier, now = builder.chat(conversation()), builder.chat(conversation(edited=edited))
    agreed = common_tokens(earlier.prompt.tokens, now.prompt.tokens)
    report = replace(
        REPORT,
        resident_tokens=0,
        host_tokens=0,
        prompt_tokens=len(now.prompt),
        seen_tokens=agreed,
        difference=find_difference(now.prompt.tokens[agreed:], agreed, [earlier.prompt.tokens[agreed:]]),
    )
    place = explain(report, now.prompt, Spelling(tokenizer), cache=True).first_difference
    assert place is not None
    before = builder.chat(conversation()[:edited], add_generation_prompt=False).text if edited else ""
    assert now.text.startswith(before)
    differs_at = common_characters(earlier.text, now.text)
    assert place.place.messages == (edited, edited)
    assert place.place.part is (Part.HEAD if edited == 0 else Part.MESSAGE)
    shared = shared_bytes(now.prompt, place.place.start, before, tokenizer)
    assert place.byte == shared + len(now.text[len(before) : differs_at].encode())
    if family == "lfm2":
        assert shared == 0  # its messages begin with a control token
