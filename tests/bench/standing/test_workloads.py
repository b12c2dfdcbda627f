"""The synthetic workloads: equal seeds give equal calls, and what is called warm really goes on from earlier calls."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anchorline.bench.standing.texts import Author
from anchorline.bench.standing.workloads import SYNTHETIC, Call, Role, Sizes, Steps

SIZES = Sizes(anchor_tokens=3000)


def steps_of(name: str, seed: int = 0) -> Steps:
    return SYNTHETIC[name](Author(random.Random(seed), words_per_token=0.75), SIZES)


def calls_of(name: str, seed: int = 0) -> list[Call]:
    return [call for step in steps_of(name, seed) for call in step.calls]


def shared_head(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return bool(left["messages"][0] == right["messages"][0] and left.get("tools") == right.get("tools"))


def goes_on_from(body: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Whether ``body`` has the head of ``earlier`` and begins with its messages, or is another session on its head."""
    kept = earlier["messages"]
    return shared_head(body, earlier) and (body["messages"][: len(kept)] == kept or len(body["messages"]) == 2)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_equal_seeds_give_equal_calls_and_others_share_no_head(name: str) -> None:
    calls, again, other = calls_of(name), calls_of(name), calls_of(name, seed=1)
    assert [call.body for call in calls] == [call.body for call in again]
    with_tools = [(mine.body, theirs.body) for mine, theirs in zip(calls, other, strict=True) if "tools" in mine.body]
    assert with_tools
    for mine, theirs in with_tools:
        assert mine["messages"][0] != theirs["messages"][0]
        assert mine["tools"][0] != theirs["tools"][0]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_warm_calls_go_on_from_an_earlier_step(name: str) -> None:
    seen: list[dict[str, Any]] = []
    for step in steps_of(name):
        for call in step.calls:
            if call.role is Role.WARM:
                assert any(goes_on_from(call.body, earlier) for earlier in seen), call.name
        seen += [call.body for call in step.calls]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_each_call_has_a_name_of_its_own_and_the_first_is_cold(name: str) -> None:
    calls = calls_of(name)
    assert calls[0].role is Role.COLD
    assert len({call.name for call in calls}) == len(calls)


def test_the_control_differs_in_the_words_of_one_tool_alone() -> None:
    first, *_, control = calls_of("tool-session")
    assert control.role is Role.CONTROL
    changed = [i for i, tool in enumerate(control.body["tools"]) if tool != first.body["tools"][i]]
    assert changed == [0]
    was, now = first.body["tools"][0]["function"], control.body["tools"][0]["function"]
    assert {key for key in was if was[key] != now[key]} == {"description"}
    assert {key: value for key, value in control.body.items() if key != "tools"} == {
        key: value for key, value in first.body.items() if key != "tools"
    }


def test_sub_agents_are_sent_together_and_share_all_but_the_end_of_their_heads() -> None:
    main, first, second, again = steps_of("sub-agents")
    assert [len(step.calls) for step in (main, first, second, again)] == [1, 3, 3, 1]
    bodies = [call.body for call in first.calls]
    systems = [body["messages"][0]["content"] for body in bodies]
    assert all(body["tools"] == bodies[0]["tools"] for body in bodies)
    assert len(set(systems)) == 3
    shared = next(place for place, letters in enumerate(zip(*systems, strict=False)) if len(set(letters)) > 1)
    assert shared > 0.9 * len(systems[0])
    assert not shared_head(main.calls[0].body, bodies[0])


def test_a_restart_is_where_it_says() -> None:
    assert [step.restart for step in steps_of("restart")] == [False, False, True]
    assert not any(step.restart for name in SYNTHETIC if name != "restart" for step in steps_of(name))


def test_texts_are_about_as_long_as_they_are_asked_to_be() -> None:
    author = Author(random.Random(0), words_per_token=0.5)
    assert len(author.text(300).split()) == 150
    head = author.head(8000, tools=10)
    words = len(f"{head.system} {head.tools}".split())
    assert 8000 * 0.3 < words < 8000 * 0.6
