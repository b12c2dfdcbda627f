"""Whatever comes back from a client, and however: generated ids in a prompt never change what it says."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.output.formats import FORMATS
from anchorline.output.meaning import Said, read, same_json
from anchorline.prompt.builder import BuiltPrompt
from tests.prompt.speaking import SCHEMAS, Message, Speaker, ids_of, respelled, results_of
from tests.prompt.support import system, user
from tests.support.families import FAMILIES

words = st.text(st.sampled_from("ab the.\n"), max_size=12)
paths = st.text(st.sampled_from('a b/.ä"\\'), max_size=8)
calls = st.tuples(
    st.sampled_from(sorted(SCHEMAS)),
    st.fixed_dictionaries({"path": paths}, optional={"line": st.integers(-9, 10**6), "exact": st.booleans()}),
)
examples = count()
REWRITINGS = ("none", "no reasoning", "arguments", "content", "ids", "function")


@st.composite
def turns(draw: st.DrawFn) -> dict[str, Any]:
    """What the model says, what the client makes of it, and what follows.

    Thoughts are some or none: a block with nothing in it says nothing, and keeps its ids.
    """
    called = draw(st.lists(calls, max_size=2))
    return {
        "reasoning": draw(st.just("") | words.filter(str.strip)),
        "content": draw(words if called else words.filter(str.strip)),
        "calls": called,
        "rewriting": draw(st.sampled_from(REWRITINGS)),
        "reversed": draw(st.booleans()),
        "follows": draw(words | st.sampled_from(["<tool_call>", "</think>", "[TOOL_CALLS]", "<|im_end|>"])),
    }


def sent_back(message: Message, rewriting: str) -> Message:
    """``message`` as one client or another sends it back."""
    message = json.loads(json.dumps(message))
    functions = [call["function"] for call in message.get("tool_calls", ())]
    match rewriting:
        case "no reasoning":
            message.pop("reasoning_content", None)
            message["content"] = message["content"] or None
            for function in functions:
                function["arguments"] = respelled(function["arguments"])
        case "arguments":
            for function in functions:
                function["arguments"] = json.dumps({**json.loads(function["arguments"]), "line": -1})
        case "content":
            message["content"] = "Something else."
        case "ids":
            for index, call in enumerate(message.get("tool_calls", ())):
                call["id"] = f"own_{index}"
        case "function":
            for function in functions:
                function["name"] = "list_files"
        case _:
            pass
    return message


def converse(speaker: Speaker, script: list[dict[str, Any]]) -> tuple[list[Message], list[Message]]:
    """The messages of a conversation as the client holds them at its end, and the same with all reasoning."""
    messages: list[Message] = [system("be brief"), user("ab the")]
    thoughts: dict[int, str] = {}
    for turn in script:
        family = speaker.family
        called = turn["calls"] if family.parallel else turn["calls"][:1]
        content = "" if called and not family.shows_text_with_calls else turn["content"]
        prompt = speaker.chat(messages)
        reply = speaker.spell(family.says(turn["reasoning"] if family.shows_reasoning else "", content, called))
        heard = speaker.hear(reply, prompt)
        message = sent_back(heard, turn["rewriting"])
        if "reasoning_content" in heard:
            thoughts[len(messages)] = heard["reasoning_content"]
        messages.append(message)
        if "tool_calls" in message:
            results = results_of(message, *["ab the", turn["follows"]][: len(message["tool_calls"])])
            messages += reversed(results) if turn["reversed"] else results
        else:
            messages.append(user(turn["follows"]))
    whole = [
        {**message, "reasoning_content": thoughts[index]} if index in thoughts else message
        for index, message in enumerate(messages)
    ]
    return messages, whole


@cache
def speaker_of(name: str) -> tuple[Speaker, str]:
    """A speaker, and the text that its template has begin a reply."""
    speaker = Speaker(FAMILIES[name])
    started, opened = (
        speaker.plain.chat([user("ab the")], add_generation_prompt=opens).text for opens in (False, True)
    )
    return speaker, opened.removeprefix(started)


def sayings(speaker: Speaker, header: str, built: BuiltPrompt) -> list[tuple[str, Said]]:
    """A prompt taken apart where turns end: what stands before a reply, and what the rest says."""
    family, ids = speaker.family, ids_of(built)
    ends = {speaker.tokenizer.control_tokens[text] for text in (family.end, family.end_of_calls)}
    parts: list[list[int]] = [[]]
    for token in ids:
        parts[-1].append(token)
        if token in ends:
            parts.append([])
    said = []
    for part in parts:
        text = speaker.tokenizer.detokenize([token for token in part if token not in ends]).decode("utf-8", "replace")
        marks = [mark for mark in (header, family.result_end) if mark and mark in text]
        before, found, body = text.rpartition(marks[0]) if marks else ("", "", text)
        said.append((before + found, read(body, speaker.format, prompt_end=found, tools=SCHEMAS)))
    return said


def spaceless(text: str) -> str:
    """What is left where a template trims a text at its ends, and of the ids that Kimi counts as it likes."""
    return re.sub(r"(functions\.\w+:)\d+", r"\1", "".join(text.split()))


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=8, deadline=None)
@given(script=st.lists(turns(), min_size=1, max_size=4))
def test_what_a_prompt_says_does_not_depend_on_the_memo(name: str, script: list[dict[str, Any]]) -> None:
    speaker, header = speaker_of(name)
    speaker.tenant = f"{next(examples)}"  # so that no example knows the turns of another
    messages, whole = converse(speaker, script)
    built = sayings(speaker, header, speaker.chat(messages))
    plain = sayings(speaker, header, speaker.without_memo(whole))
    assert [before for before, _ in built] == [before for before, _ in plain]
    for (_, one), (_, other) in zip(built, plain, strict=True):
        assert spaceless(one.content) == spaceless(other.content)
        assert one.reasoning.strip() == other.reasoning.strip()
        assert [call.name for call in one.calls] == [call.name for call in other.calls]
        assert all(same_json(call.arguments, own.arguments) for call, own in zip(one.calls, other.calls, strict=True))
