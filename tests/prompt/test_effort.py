"""Reasoning effort in the words that templates know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.prompt.effort import EFFORTS, effort_kwargs, known_efforts
from tests.prompt.support import toy_builder, user

LINES = "{% for m in messages %}{{ m.content }}{% endfor %}"
SHOWS = "{{ reasoning_effort|default('medium') }}:" + LINES
REFUSES = (
    "{% set reasoning_effort = reasoning_effort|default('none') %}"
    "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('none or high') }}{% endif %}" + SHOWS
)
SWITCH = "{{ 'on' if enable_thinking|default(true) else 'off' }}:" + LINES
OTHER_SWITCH = "{{ 'on' if thinking else 'off' }}:" + LINES
OTHER_NAME = SHOWS.replace("reasoning_effort", "thinking_effort")
MANY = "{% set known = ['minimal', 'xhigh', 'max'] %}" + SHOWS


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SHOWS, ["low", "low", "low", "medium", "high", "high", "high"]),
        (REFUSES, ["none", "high", "high", "high", "high", "high", "high"]),
        (OTHER_NAME, ["low", "low", "low", "medium", "high", "high", "high"]),
        (MANY, ["minimal", "minimal", "low", "medium", "high", "xhigh", "max"]),
        (SWITCH, ["off", *["on"] * 6]),
        (OTHER_SWITCH, ["off", *["on"] * 6]),
    ],
)
def test_each_effort_becomes_what_the_template_knows(source: str, said: list[str]) -> None:
    builder = toy_builder(source)
    assert [builder.chat([user("x")], effort=effort).text for effort in EFFORTS] == [f"{word}:x" for word in said]


def test_an_explicit_option_wins() -> None:
    builder = toy_builder(SHOWS)
    assert builder.chat([user("x")], effort="low", template_kwargs={"reasoning_effort": "odd"}).text == "odd:x"


@given(literals=st.sets(st.sampled_from(EFFORTS)), renders=st.sets(st.sampled_from(EFFORTS)))
def test_only_known_values_are_given(literals: set[str], renders: set[str]) -> None:
    known = known_efforts(sorted(literals), renders.__contains__)
    assert set(known) <= renders
    for effort in EFFORTS:
        kwargs = effort_kwargs(effort, known)
        assert kwargs["enable_thinking"] is kwargs["thinking"] is (effort != "none")
        assert kwargs.get("reasoning_effort") in (known or {None})
        if effort in known:
            assert kwargs["reasoning_effort"] == effort
