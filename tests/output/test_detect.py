"""The format follows from what the template writes, then from the vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorline.output.formats import FORMATS, detect_format
from anchorline.prompt.turn_marks import TURN_MARKS, TurnMarks

TEMPLATES = {
    "hermes": "{% for tool in tools %}…{% endfor %}<tool_call>\n{'name': …}</tool_call>",
    "qwen-xml": "{{ tools }}<tool_call>\n<function=example>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    "llama": "<|start_header_id|>{{ tools }}{{ '<|python_tag|>' + tool_call.name }}",
    "mistral": "{{ tools }}{{ '[TOOL_CALLS] [' }}",
    "mistral-named": "{{ tools }}{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}",
    "deepseek-v3": "{{ '<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json' }}",
    "deepseek-v3.1": "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}",
    "deepseek-v3.2": "{% set dsml_token = '｜DSML｜' %}{{ tools }}",
    "harmony": "{{ '<|start|>assistant<|channel|>final<|message|>' }}",
    "gemma": "{{ tools }}```tool_code\n…```",
    "gemma4": "{{ tools }}{{ '<|tool_call>call:' + name }}",
    "functiongemma": "{{ tools }}{{ '<start_function_call>call:' + name }}",
    "glm": "{{ tools }}<tool_call>{name}\n<arg_key>k</arg_key>",
    "kimi": "{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "kimi-k3": "{{ tools }}{{ '<|open|>' + tag }}{{ '<|sep|>' }}",
    "lfm2": "List of tools: {{ tools }}{{ '<|tool_call_start|>[' }}",
    "granite": "{{ tools }}{{ '<|tool_call|>' + calls }}",
    "minimax": "{{ tools }}{% set begin = '<minimax:tool_call>' %}<invoke name=\"x\">",
}
VOCABULARY = ("<|im_start|>", "<|im_end|>", "<tool_call>")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_by_the_template(name: str) -> None:
    assert detect_format(TEMPLATES[name], VOCABULARY).name == name


def test_llama_without_a_python_tag() -> None:
    asks = '{{ \'Respond in the format {"name": function name, "parameters": dictionary of arguments}\' }}'
    assert detect_format("<|start_header_id|>" + asks + "{{ tools }}", ()).name == "llama"


@pytest.mark.parametrize(
    ("token", "name"),
    [("<|tool_call_begin|>", "kimi"), ("<|tool_call_start|>", "lfm2"), ("[TOOL_CALLS]", "mistral")],
)
def test_by_the_vocabulary_where_the_template_knows_of_tools(token: str, name: str) -> None:
    assert detect_format("{{ tools | tojson }}", (token,)).name == name
    assert detect_format("{{ messages }}", (token,)).name == "hermes"


def test_what_is_unknown_gives_hermes() -> None:
    assert detect_format("", ()).name == "hermes"
    assert detect_format("{{ tools }}", VOCABULARY).name == "hermes"


@pytest.mark.parametrize("marks", TURN_MARKS.values(), ids=TURN_MARKS)
def test_the_built_in_templates_ask_for_hermes(marks: TurnMarks) -> None:
    vocabulary = (*marks.marks, "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>")
    assert detect_format(marks.template().source, vocabulary).name == "hermes"


def test_every_format_is_documented() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "reply-formats.md").read_text("utf-8")
    assert [name for name in FORMATS if f"\n| `{name}` |" not in page] == []
