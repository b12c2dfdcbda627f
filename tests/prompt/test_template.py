"""Jinja as model files need it, and nothing a template may not do."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.errors import ConfigError, RequestError
from anchorline.prompt.bounds import REPEAT_LIMIT
from anchorline.prompt.template import ChatTemplate, GivenList
from tests.prompt.support import NOON, user


def render(source: str, **kwargs: Any) -> str:
    return ChatTemplate(source).render(
        [user("hello")],
        tools=GivenList([{"name": "f", "é": "<b>&'"}]),
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        kwargs=kwargs,
        now=NOON,
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hello</s>"),
        ("{% if add_generation_prompt %}\n  yes\n{% endif %}\n", "  yes\n"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "13"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}a{{ messages[0].role }}{% endgeneration %}b", "auserb"),
        ("{{ strftime_now('%d %b %Y') }}", "17 May 2024"),
        ("{{ tools | tojson }}", '[{"name": "f", "é": "<b>&\'"}]'),
        ("{{ tools[0] | tojson(indent=1) }}", '{\n "name": "f",\n "é": "<b>&\'"\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ {'b': [1, 2]} | tojson(separators=(',', ':')) }}", '{"b":[1,2]}'),
        ("{{ 'é😀' | tojson(ensure_ascii=true) }}", '"\\u00e9\\ud83d\\ude00"'),
        ("{{ option }}", "on"),
        ("{{ missing }}{{ messages[0].missing }}", ""),
        ("{{ messages[0].items() | list | length }}", "2"),
        ("{% set x = [] %}{% set _ = x.append(1) %}{{ x }}", "[1]"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source, option="on") == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing.attribute }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ tools.append(1) }}", "unsafe"),
        ("{{ messages[0].update({'a': 1}) }}", "unsafe"),
        ("{% for i in range(1000000) %}x{% endfor %}", "range"),
        ("{{ 'x' * " + str(REPEAT_LIMIT + 1) + " }}", "repetition"),
        ("{{ [1] * " + str(REPEAT_LIMIT + 1) + " }}", "repetition"),
        ("{{ 10 ** 1000000 }}", "power"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ {}['a'].b }}", "no attribute"),
        ("{{ [] | tojson(indent=['x']) }}", "render"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{{ strftime_now(5) }}", "argument"),
    ],
)
def test_a_template_that_fails_is_the_requests_error(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render(source)
    assert caught.value.field == "messages"
    assert caught.value.code == "template_error"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x | no_such_filter }}", "{% unknown %}", "{{ 'open", "{% generation %}"]
)
def test_a_template_that_cannot_be_compiled_names_the_flag(source: str) -> None:
    with pytest.raises(ConfigError, match="--chat-template: broken"):
        ChatTemplate(source, name="broken")


def test_markers_are_where_text_is_taken_apart() -> None:
    template = ChatTemplate(
        "{{ m.split('</think>')[0].replace(' a ', '') | replace('x', 'y') }}{{ m | default('z') }}{{ m.get('w') }}"
    )
    assert template.markers == ("</think>", "a", "x", "y")


def test_a_dict_key_named_like_a_method_does_not_hide_the_method() -> None:
    assert render("{{ option.items() | list }}", option={"items": 1}) == "[('items', 1)]"
