"""Turns sealed in idle time, live: what the next request still has to prefill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.prompt.speaking import Message, results_of, rewritten
from tests.server.test_formats_round_trip import ENGINE, READ, START, Live, Reply, living
from tests.support.families import FAMILIES

ARCHITECTURES = ("llama", "qwen35", "gemma3")
RESULT = "It rains."
QUESTION: Message = {"role": "user", "content": "And then?"}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with living(FAMILIES["hermes"], architecture=request.param, seal=True) as made:
        yield made


def sealed(live: Live, messages: list[Message], **reply: Any) -> Reply:
    """A reply, and the time it takes to seal it."""
    done = live.seals.completed
    answer = live.says(messages, **reply)
    live.seals.wait(completed=done + 1)
    return answer


def delta(live: Live, messages: list[Message], reply: Reply) -> list[int]:
    """Ids of a prompt that the call which answered with ``reply`` had to prefill."""
    return live.ids(messages)[reply.cached :]


def ids_from(live: Live, messages: list[Message], text: str) -> list[int]:
    """Ids of a prompt from the message on that begins with ``text``."""
    other = live.ids([*messages[:-1], {**messages[-1], "content": "Q" + text}])
    ids = live.ids(messages)
    start = next(index for index, (one, two) in enumerate(zip(ids, other, strict=False)) if one != two)
    return ids[start:]


def test_only_the_tools_result_is_left_to_prefill(live: Live) -> None:
    called = sealed(live, START, calls=(READ,))
    history = [*START, rewritten(called.message), *results_of(called.message, RESULT)]
    answered = sealed(live, history, content="It says that it rains.")
    assert delta(live, history, answered) == ids_from(live, history, RESULT)
    assert answered.cached > len(called.known)


def test_only_the_users_words_are_left_though_the_template_drops_the_thoughts_of_the_turn(live: Live) -> None:
    start = [*START, {"role": "user", "content": "Read it."}]
    called = sealed(live, start, calls=(READ,))
    history = [*start, rewritten(called.message), *results_of(called.message, RESULT)]
    answered = sealed(live, history, content="It says that it rains.")
    assert "Hm, the file." in called.message["reasoning_content"]
    history += [{"role": "assistant", "content": answered.message["content"]}, QUESTION]
    asked = live.says(history, content="Nothing.")
    assert delta(live, history, asked) == ids_from(live, history, QUESTION["content"])


def test_a_request_that_was_not_guessed_restores_what_it_would_have(live: Live) -> None:
    """The user speaks where a tool's result was expected."""
    start = [*START, {"role": "user", "content": "Look again."}]
    called = sealed(live, start, calls=(READ,))
    result = results_of(called.message, RESULT)
    interrupted = [*start, rewritten(called.message), *result, {"role": "user", "content": "No, stop."}]
    answered = live.says(interrupted, content="Stopped.")
    assert answered.cached >= len(live.ids(start)) - 40


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_request_in_the_middle_of_it_prefills_no_more_than_without(architecture: str) -> None:
    prefilled = []
    for seal in (False, True):
        with living(FAMILIES["hermes"], architecture=architecture, seal=seal) as live:
            called = sealed(live, START, calls=(READ,)) if seal else live.says(START, calls=(READ,))
            history = [*START, rewritten(called.message), *results_of(called.message, RESULT)]
            answered = live.says(history, content="It says that it rains. " * 12)
            if seal:
                live.seals.wait(begun=2)
            history += [{"role": "assistant", "content": answered.message["content"]}, QUESTION]
            asked = live.says(history, content="Nothing.")
            prefilled.append(len(delta(live, history, asked)))
    assert prefilled[1] <= prefilled[0]


def test_without_it_more_is_left() -> None:
    """So the tests above could fail."""
    with living(FAMILIES["hermes"]) as live:
        called = live.says(START, calls=(READ,))
        history = [*START, rewritten(called.message), *results_of(called.message, RESULT)]
        answered = live.says(history, content="It says that it rains.")
        assert len(delta(live, history, answered)) > len(ids_from(live, history, RESULT))
        history += [{"role": "assistant", "content": answered.message["content"]}, QUESTION]
        asked = live.says(history, content="Nothing.")
        assert len(delta(live, history, asked)) > len(ids_from(live, history, QUESTION["content"])) + 20
        assert live.seals.begun == 0


def test_metrics_tell_what_was_sealed_and_used() -> None:
    with living(FAMILIES["hermes"], seal=True) as live:
        called = sealed(live, START, calls=(READ,))
        history = [*START, rewritten(called.message), *results_of(called.message, RESULT)]
        answered = sealed(live, history, content="It says that it rains.")
        assert answered.cached > len(called.known)
        live.says([{"role": "user", "content": "Something else."}], content="Yes.")
        counted = metrics(live.client)
        assert counted["anchorline_seals_total"] >= 2
        assert counted["anchorline_sealed_tokens_used_total"] == answered.cached - len(called.known)
        assert counted["anchorline_sealed_tokens_total"] > counted["anchorline_sealed_tokens_used_total"]
        assert counted["anchorline_sealing_pays"] == 1
        assert sum(value for name, value in counted.items() if name.startswith("anchorline_plans_total")) == 3


def metrics(client: httpx.Client) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


@pytest.mark.parametrize("engine", [replace(ENGINE, cache=False), replace(ENGINE, exact=True)])
def test_without_a_cache_and_in_exact_mode_there_is_nothing_to_seal(engine: Any) -> None:
    with living(FAMILIES["hermes"], engine=engine, seal=True) as live:
        assert live.sealed_turns == 0
