"""A template that would not end, or that would make too much, is the request's error and costs little."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anchorline.errors import ConfigError, RequestError
from anchorline.limits import Limits
from anchorline.prompt.bounds import PAD_LIMIT, REPEAT_LIMIT, Budget, TemplateLimit, bounded
from anchorline.prompt.probe import TemplateTokens, probe
from anchorline.prompt.select import select_template
from anchorline.prompt.template import ChatTemplate
from tests.prompt.support import NOON, model_info, user
from tests.prompt.vocabulary import ToyTokenizer

TOKENS = TemplateTokens("<s>", "</s>")
TINY = Limits(template_steps=1000, template_chars=10_000)


def still() -> float:
    return 0.0


def render(source: str, limits: Limits = TINY, *, clock: Callable[[], float] = still, **kwargs: Any) -> str:
    template = ChatTemplate(source)
    with bounded(Budget(limits, clock=clock)):
        return render_within(template, **kwargs)


def render_within(template: ChatTemplate, **kwargs: Any) -> str:
    return template.render(
        [user("hello")],
        tools=None,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        kwargs=kwargs,
        now=NOON,
    )


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in [[1] * 9] * 9999 recursive %}{{ loop(a) if a is iterable }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{% set _ = f(12) %}",
    "{% macro f(n) %}{{ caller() if n }}{% endmacro %}"
    "{% macro g(n) %}{% call f(n) %}{{ g(n - 1) }}{{ g(n - 1) }}{% endcall %}{% endmacro %}{{ g(12) }}",
    "{% set x %}{% for a in range(99999) %}{% endfor %}{% endset %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_loops_and_macros_have_so_many_steps(source: str) -> None:
    with pytest.raises(TemplateLimit, match="more than 1000 steps") as caught:
        render(source)
    assert (caught.value.field, caught.value.code) == ("messages", "template_limit")


@pytest.mark.parametrize("source", [*ENDLESS, "{{ bos_token }}" * 50])
def test_a_render_has_so_much_time(source: str) -> None:
    ticks = itertools.count()
    with pytest.raises(TemplateLimit, match=r"longer than 5 seconds .--max-template-seconds"):
        render(source, Limits(), clock=lambda: float(next(ticks)))


LONG = [
    "{% for a in range(999) %}" + "x" * 20 + "{% endfor %}",
    "{% set x %}{% for a in range(999) %}" + "x" * 20 + "{% endfor %}{% endset %}",
    "{% macro f() %}{% for a in range(999) %}" + "x" * 20 + "{% endfor %}{% endmacro %}{% set _ = f() %}",
    "{% filter upper %}{% for a in range(999) %}" + "x" * 20 + "{% endfor %}{% endfilter %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
    "{% set s = 'x' * 9000 %}{% for a in range(999) %}{% set t = s.upper() %}{% endfor %}",
    "{% set s = 'x' * 9000 %}{% for a in range(999) %}{% set t = s[1:] %}{% endfor %}",
    "{{ ('x' * 9000).replace('x', 'y' * 9000) }}",
    "{{ ('x' * 9000) | replace('x', 'y' * 9000) }}",
    "{{ ('x' * 9000).join(range(999) | map('string') | list) }}",
    "{{ range(999) | map('string') | join('x' * 9000) }}",
    "{{ ([{'a': 'x' * 9000}] * 999) | join(attribute='a') }}",
]


@pytest.mark.parametrize("source", LONG)
def test_a_render_makes_so_much_text(source: str) -> None:
    with pytest.raises(TemplateLimit, match=r"more than 10000 characters .--max-template-chars"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set x = [1] %}{% for a in range(99) %}{% set _ = x.extend(x) %}{% endfor %}",
        "{% set ns = namespace(n=2) %}{% for a in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ 'x'.center(2000000000) }}",
        "{{ 'x'.ljust(2000000000) }}",
        "{{ 'x'.zfill(2000000000) }}",
        "{{ 'x\t'.expandtabs(2000000000) }}",
        "{{ 'x' | center(2000000000) }}",
        "{{ 'x' | indent(width=2000000000) }}",
        "{{ [1] | batch(linecount=2000000000, fill_with='x') | list }}",
        "{{ [1] | slice(2000000000) | list }}",
        "{{ '%2000000000d' % 1 }}",
        "{{ '%*d' % (2000000000, 1) }}",
        "{{ '%.2000000000f' | format(1.0) }}",
        "{{ '{:2000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 2000000000) }}",
        "{{ [1] | tojson(indent=2000000000) }}",
        "{{ [1] | tojson(indent='x' * 1000000) }}",
        "{{ lipsum(1000) }}",
    ],
)
def test_what_would_make_much_in_one_go_is_refused(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source, Limits())
    assert caught.value.code == "template_error"


def test_what_is_within_the_limits_is_made() -> None:
    assert render(f"{{{{ 'x' | center({PAD_LIMIT}) | length }}}}") == str(PAD_LIMIT)
    assert render(f"{{{{ ([1] * {REPEAT_LIMIT}) | length }}}}") == str(REPEAT_LIMIT)
    assert render("{{ '%5.1f|%-3s' % (1, 'a') }}{{ '{:>4}'.format(7) }}") == "  1.0|a     7"
    assert render("{{ ['a', 'b'] | join(', ') }}{{ [{'k': 1}] | join(attribute='k') }}") == "a, b1"
    assert render("{{ 'aXa'.replace('X', '--') }}{{ 'aXa' | replace(new='-', old='X') }}") == "a--aa-a"
    assert (
        render("{% for a in [1, 2] %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% endfor %}") == "12False22True"
    )
    assert (
        render("{% for a in [] %}{% else %}none{% endfor %}{% for a in [1, 2] if a > 1 %}{{ a }}{% endfor %}")
        == "none2"
    )


def test_the_renders_of_a_request_share_its_budget() -> None:
    template = ChatTemplate("{% for a in range(600) %}{% endfor %}")
    with bounded(Budget(TINY, clock=still)):
        render_within(template)
        with pytest.raises(TemplateLimit, match="steps"):
            render_within(template)
    with bounded(Budget(TINY, clock=still)):
        assert render_within(template) == ""


def test_time_between_renders_does_not_count() -> None:
    now = 0.0
    template = ChatTemplate("{{ 1 }}")
    with bounded(Budget(Limits(), clock=lambda: now)):
        for _ in range(5):
            render_within(template)
            now += 1000.0


class Cancelling:
    """What a template finds when its request is cancelled while it renders."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def __str__(self) -> str:
        self.budget.cancel()
        return ""


def test_a_cancelled_budget_ends_its_renders() -> None:
    budget, template = Budget(Limits(), clock=still), ChatTemplate("{{ x }}{% for a in range(9) %}{% endfor %}")
    with bounded(budget):
        for _ in range(2):
            with pytest.raises(TemplateLimit):
                render_within(template, x=Cancelling(budget))


def test_a_render_outside_of_any_budget_has_the_default_one() -> None:
    with pytest.raises(TemplateLimit, match="more than 67108864 characters"):
        render_within(ChatTemplate("{% set s = 'x' * 1000000 %}{% for a in range(99) %}{{ s }}{% endfor %}"))
    assert render_within(ChatTemplate("{{ 'a' ~ 1 }}")) == "a1"


class OutOfMemory:
    def __str__(self) -> str:
        raise MemoryError


def test_out_of_memory_is_the_requests_error() -> None:
    with pytest.raises(RequestError, match="MemoryError"):
        render("{{ x }}", x=OutOfMemory())


@pytest.mark.parametrize(
    "source", [ENDLESS[0], LONG[0], "{% if messages | length == 2 %}" + ENDLESS[0] + "{% endif %}"]
)
def test_at_start_up_the_template_is_named(source: str) -> None:
    with (
        bounded(Budget(TINY, clock=still)),
        pytest.raises(ConfigError, match=r"--chat-template: mine is not usable: .*--max-t"),
    ):
        probe(ChatTemplate(source, name="mine"), TOKENS)
    with bounded(Budget(TINY, clock=still)), pytest.raises(ConfigError, match="--chat-template: default"):
        select_template(None, model_info(chat_template=source), ToyTokenizer(()))


def test_a_pipe_or_a_device_is_no_template(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jinja"
    os.mkfifo(pipe)
    for choice in (str(pipe), "/dev/zero", "/dev/null"):
        with pytest.raises(ConfigError, match=f"--chat-template: {choice} is not a regular file"):
            select_template(choice, model_info(), ToyTokenizer(()))
