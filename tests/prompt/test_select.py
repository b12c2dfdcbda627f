"""Which template is taken, and what it is found to need."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorline.errors import ConfigError
from anchorline.llama.model import Model
from anchorline.prompt.probe import TemplateTokens, probe
from anchorline.prompt.select import select_template, template_tokens
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.turn_marks import TURN_MARKS, TurnMarks
from tests.prompt.support import CHATML_CONTROL, model_info
from tests.prompt.vocabulary import ToyTokenizer

TOKENS = TemplateTokens("<s>", "</s>")
VOCABULARY = ToyTokenizer(CHATML_CONTROL)
NO_MARKS = ToyTokenizer(("<s>", "</s>"), bos="<s>", eos="</s>")
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
WITH_TOOLS = "{{ tools | tojson if tools }}" + PLAIN


def test_the_models_own_template_is_the_default() -> None:
    chosen = select_template(None, model_info(chat_template=WITH_TOOLS), VOCABULARY)
    assert (chosen.name, chosen.origin, chosen.supports_tools) == ("default", "model file", True)
    assert chosen.tool_template is chosen.template


def test_without_one_the_vocabulary_decides() -> None:
    chosen = select_template(None, model_info(), VOCABULARY)
    assert (chosen.name, chosen.origin, chosen.supports_tools) == ("chatml", "built in", True)
    assert chosen.words == (
        "chatml (built in: the model file has none, and its vocabulary has <|im_start|>, <|im_end|>)"
    )
    assert chosen.tool_template is chosen.template
    assert chosen.foreign == ()


def test_a_vocabulary_without_marks_gets_chatml_and_that_is_told() -> None:
    chosen = select_template(None, model_info(), NO_MARKS)
    assert (chosen.name, chosen.foreign) == ("chatml", ("chatml",))
    assert chosen.words.endswith("its vocabulary has the marks of none that is built in)")
    chosen = select_template(None, model_info(chat_template=PLAIN), NO_MARKS)
    assert (chosen.name, chosen.foreign) == ("default", ("chatml",)), "for the tools"
    assert select_template(None, model_info(chat_template=WITH_TOOLS), NO_MARKS).foreign == ()
    assert select_template("gemma", model_info(), VOCABULARY).foreign == ("gemma",)


@pytest.mark.parametrize("family", TURN_MARKS.values(), ids=TURN_MARKS)
def test_a_template_without_tools_leaves_them_to_the_family_of_the_vocabulary(family: TurnMarks) -> None:
    chosen = select_template(None, model_info(chat_template=PLAIN), ToyTokenizer(family.marks))
    assert not chosen.supports_tools
    assert chosen.template.source == PLAIN
    assert chosen.tool_template.source == family.template().source
    assert chosen.tool_capabilities.tools
    assert chosen.words == f"default (model file: its own); tools as in {chosen.tool_template.name}"


def test_the_models_own_tool_template_goes_before_a_built_in_one() -> None:
    named = {"tool_use": WITH_TOOLS}
    chosen = select_template(None, model_info(chat_template=PLAIN, named=named), VOCABULARY)
    assert chosen.tool_template.name == "tool_use"
    useless = select_template(None, model_info(chat_template=PLAIN, named={"tool_use": PLAIN}), VOCABULARY)
    assert useless.tool_template.name == "chatml"


@pytest.mark.parametrize("name", TURN_MARKS)
def test_built_in_by_name(name: str) -> None:
    chosen = select_template(name, model_info(chat_template=PLAIN), VOCABULARY)
    assert chosen.words == f"{name} (built in: --chat-template)"
    assert chosen.supports_tools


def test_every_built_in_one_is_documented_with_its_marks() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "chat-templates.md").read_text("utf-8")
    assert "(or `hermes`)" in page
    rows = [line.replace("\\|", "|").replace(" (or `hermes`)", "") for line in page.splitlines()]
    for name, family in TURN_MARKS.items():
        marks = ", ".join(f"`{mark}`" for mark in family.marks)
        assert name == "hermes" or any(row.startswith(f"| `{name}` | {marks} |") for row in rows), name


def test_a_name_in_the_model_file() -> None:
    info = model_info(chat_template=PLAIN, named={"rag": WITH_TOOLS})
    assert select_template("rag", info, VOCABULARY).template.source == WITH_TOOLS
    assert select_template("default", info, VOCABULARY).template.source == PLAIN


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(PLAIN)
    chosen = select_template(str(path), model_info(), VOCABULARY)
    assert (chosen.name, chosen.origin, chosen.template.source) == ("mine.jinja", str(path), PLAIN)


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--chat-template: 'hermse'.*chatml, gemma, .*default, rag.*nor a file"):
        select_template("hermse", model_info(chat_template=PLAIN, named={"rag": PLAIN}), VOCABULARY)
    with pytest.raises(ConfigError, match="it has none"):
        select_template(str(tmp_path), model_info(), VOCABULARY)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{% if %}", b"x" * ((1 << 20) + 1)])
def test_a_file_that_is_no_template(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.jinja"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="--chat-template"):
        select_template(str(path), model_info(), VOCABULARY)


EACH = "{% for m in messages %}"
REFUSES_SYSTEM = EACH + "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
DROPS_SYSTEM = EACH + "{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}{{ tools }}"
WANTS_PARTS = EACH + "{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}{{ tools }}"
WANTS_TEXT = EACH + "{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
WANTS_NULL = EACH + "{% if m.content is none %}{{ m.tool_calls }}{% endif %}{% endfor %}"
WANTS_ONE_CALL = (
    EACH + "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{{ m.tool_calls }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "different"),
    [
        (PLAIN, {"tools": False}),
        (WITH_TOOLS, {}),
        (REFUSES_SYSTEM + PLAIN, {"system": False, "tools": False}),
        (DROPS_SYSTEM, {"system": False}),
        (WANTS_PARTS, {"typed_content": True}),
        (WITH_TOOLS + WANTS_TEXT, {"text_arguments": True}),
        (WITH_TOOLS + WANTS_NULL, {"null_call_content": True}),
        (WITH_TOOLS + WANTS_ONE_CALL, {"parallel_calls": False}),
    ],
)
def test_capabilities(source: str, different: dict[str, bool]) -> None:
    usual = {
        "system": True,
        "tools": True,
        "typed_content": False,
        "null_call_content": False,
        "text_arguments": False,
        "parallel_calls": True,
    }
    found = probe(ChatTemplate(source), TOKENS)
    assert {name: getattr(found, name) for name in usual} == usual | different


def test_the_default_model(smollm2_model: Model) -> None:
    tokens = template_tokens(smollm2_model.tokenizer)
    chosen = select_template(None, smollm2_model.info, smollm2_model.tokenizer)
    assert tokens == TemplateTokens("<|im_start|>", "<|im_end|>")
    assert (chosen.origin, chosen.supports_tools, chosen.tool_template.name) == ("model file", False, "chatml")
