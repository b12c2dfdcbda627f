"""What formats say of their reasoning agrees with what their parsers find."""

from __future__ import annotations

import pytest

from anchorline.engine.request import FinishReason
from anchorline.output.events import ChoiceFinished, ReasoningDelta, ReplyEvent, TextDelta
from anchorline.output.format import CallMode, ReasoningTags, ReplyContext, ReplyFormat
from anchorline.output.formats import FORMATS
from anchorline.output.unsplit import UnsplitReasoning

FORMATS_THAT_REASON = [known for known in FORMATS.values() if known.reasoning is not None]


def prompt_end(tags: ReasoningTags, *, opened: bool) -> str:
    return f"Hi{tags.after_end}{tags.begin if opened else ''}"


def wrapped(tags: ReasoningTags, reasoning: str, answer: str, *, opened: bool = False) -> str:
    return tags.wrap(reasoning, answer, prompt_end=prompt_end(tags, opened=opened))


def events(known: ReplyFormat, text: str, *, opened: bool = False, split: bool = True) -> list[ReplyEvent]:
    tags = known.reasoning
    assert tags is not None
    end = prompt_end(tags, opened=opened)
    context = ReplyContext(prompt_end=end, tools={}, calls=CallMode.NONE, new_call_id=lambda: "id")
    parser = known.parser(context)
    if not split:
        parser = UnsplitReasoning(parser, tags, opened=opened)
    fed: list[ReplyEvent] = [*(TextDelta(0, part, ()) for part in text), ChoiceFinished(0, FinishReason.STOP, None)]
    return [made for event in fed for made in parser.feed(event)]


def said(made: list[ReplyEvent], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in made if isinstance(event, kind))


@pytest.mark.parametrize("known", FORMATS_THAT_REASON, ids=lambda known: known.name)
@pytest.mark.parametrize("opened", [False, True])
def test_a_reply_wrapped_in_the_tags_is_found_by_the_parser(known: ReplyFormat, opened: bool) -> None:
    assert known.reasoning is not None
    made = events(known, wrapped(known.reasoning, "Let me see.", "It is 4.", opened=opened), opened=opened)
    assert (said(made, ReasoningDelta), said(made, TextDelta)) == ("Let me see.", "It is 4.")


@pytest.mark.parametrize("known", FORMATS_THAT_REASON, ids=lambda known: known.name)
def test_an_answer_without_reasoning_has_none(known: ReplyFormat) -> None:
    assert known.reasoning is not None
    made = events(known, wrapped(known.reasoning, "", "It is 4."))
    assert (said(made, ReasoningDelta), said(made, TextDelta)) == ("", "It is 4.")


@pytest.mark.parametrize("known", FORMATS_THAT_REASON, ids=lambda known: known.name)
def test_reasoning_that_is_not_split_stands_between_its_tags(known: ReplyFormat) -> None:
    tags = known.reasoning
    assert tags is not None
    for opened in (False, True):
        made = events(known, wrapped(tags, "Hm.", "4.", opened=opened), opened=opened, split=False)
        begin = "" if opened else tags.begin
        assert said(made, TextDelta) == f"{begin}Hm.{tags.before_end}{tags.end}{tags.after_end}4."
        assert not said(made, ReasoningDelta)


def test_reasoning_that_never_ends_stays_open() -> None:
    made = events(FORMATS["hermes"], "<think>\nHm", split=False)
    assert said(made, TextDelta) == "<think>\nHm"


@pytest.mark.parametrize("known", FORMATS_THAT_REASON, ids=lambda known: known.name)
def test_an_answer_that_the_prompt_opened_is_not_opened_again(known: ReplyFormat) -> None:
    tags = known.reasoning
    assert tags is not None
    assert tags.wrap("", "It is 4.", prompt_end=f"Hi{tags.after_end}{tags.before_answer}") == "It is 4."
