"""How much work a prompt takes tells its client nothing about what other tenants sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.guard import Guard
from anchorline.prompt.turn_marks import CHATML
from tests.prompt.support import TOOLS, CountingTemplate, toy_builder

MESSAGES = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "What is in a.txt?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}]},
    {"role": "tool", "content": "hello"},
]


@dataclass
class Work:
    """Counts what a builder does."""

    template: CountingTemplate
    builder: PromptBuilder
    guarded: list[str] = field(default_factory=list)

    def of_chat(self, tenant: str) -> tuple[int, int, int]:
        """Characters tokenised, renders, and strings guarded for a chat of ``tenant``."""
        before = self._done()
        self.builder.chat(MESSAGES, tools=TOOLS, tenant=tenant)
        characters, renders, strings = (now - then for now, then in zip(self._done(), before, strict=True))
        return characters, renders, strings

    def of_text(self, tenant: str) -> int:
        before = self.builder.tokenizer.tokenized_characters
        self.builder.text("<|im_start|>once upon a time", tenant=tenant)
        return self.builder.tokenizer.tokenized_characters - before

    def _done(self) -> tuple[int, int, int]:
        return self.builder.tokenizer.tokenized_characters, self.template.renders, len(self.guarded)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    template = CountingTemplate(CHATML.template().source)
    made = Work(template, toy_builder(template=template))
    guard_string = Guard._guard_string

    def counted(self: Guard, text: str, *args: Any) -> str:
        made.guarded.append(text)
        return guard_string(self, text, *args)

    monkeypatch.setattr(Guard, "_guard_string", counted)
    return made


def test_a_chat_that_another_tenant_sent_takes_all_the_work(work: Work) -> None:
    first, again, foreign = work.of_chat("ann"), work.of_chat("ann"), work.of_chat("ben")
    assert all(warm < cold for warm, cold in zip(again, first, strict=True))
    assert foreign == first


def test_what_a_next_request_begins_with_takes_no_second_reading(work: Work) -> None:
    work.of_chat("ann")
    work.of_chat("ben")
    before = work.builder.tokenizer.tokenized_characters
    ended = [*MESSAGES, {"role": "assistant", "content": "It says hello."}]
    questions = ([{"role": "user", "content": text}] for text in ("one", "two"))
    guessed = work.builder.beginning(ended, *questions, tools=TOOLS, tenant="ann")
    assert 0 < work.builder.tokenizer.tokenized_characters - before < 100 < len(guessed)


def test_a_text_that_another_tenant_sent_takes_all_the_work(work: Work) -> None:
    first, again, foreign = work.of_text("ann"), work.of_text("ann"), work.of_text("ben")
    assert again == 0
    assert foreign == first > 0
