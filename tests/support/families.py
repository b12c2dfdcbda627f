"""One model family for each reply format: a chat template of the family's shape, and how its model writes a turn.

The templates (``templates/``) are short, but they have what decides about a turn that comes back: the family's
turn markers, its ways of writing calls, results and old reasoning, and its generation prompt. The models write
JSON with spacing of their own, so that a template's render of the same call has other ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anchorline.prompt.turn_marks import TURN_MARKS

TEMPLATES = Path(__file__).parent / "templates"

Call = tuple[str, dict[str, Any]]
Write = Callable[[str, dict[str, Any]], str]
Says = Callable[[str, str, list[Call]], str]
"""(reasoning, text, calls) → the turn as the model writes it, without the token that ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the tests know of one family."""

    name: str
    """Of its reply format."""
    control: tuple[str, ...]
    says: Says
    end: str
    """The token that ends a turn of text."""
    call_end: str | None = None
    """The token that ends a turn of calls, if it is another one."""
    result_end: str | None = None
    """What ends the results behind which the model goes on without another generation prompt."""
    bos: str | None = None
    parallel: bool = True
    """The model writes several calls into one turn."""
    shows_text_with_calls: bool = True
    """The template shows the text of a turn with calls as what it is."""
    shows_reasoning: bool = False
    """The template shows the reasoning of a turn whose results have just come."""
    rewrites_old: bool = False
    """The template writes even turns without reasoning anew once the user has spoken again."""
    opens_reasoning: bool = False
    """The generation prompt opens reasoning that the template does not show of a turn that had none."""
    built_in: str | None = None
    """The template, where it is one of TURN_MARKS."""

    @property
    def template(self) -> str:
        if self.built_in is not None:
            return TURN_MARKS[self.built_in].template().source
        return (TEMPLATES / f"{self.name}.jinja").read_text("utf-8")

    @property
    def choice(self) -> str:
        """The value of --chat-template that takes it."""
        return self.built_in or str(TEMPLATES / f"{self.name}.jinja")

    @property
    def end_of_calls(self) -> str:
        return self.call_end or self.end


def dumps(value: object) -> str:
    """JSON as no template writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(" ,", ":  "))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else dumps(value)


def _literal(quote: str) -> Callable[[object], str]:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {literal(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(literal, value)) + "]"
        return dumps(value)

    return literal


def _object(key: str = "arguments") -> Write:
    return lambda name, arguments: f'{{"name":"{name}","{key}":  {dumps(arguments)}}}'


def _tagged(begin: str, value: str, end: str) -> Write:
    def write(name: str, arguments: dict[str, Any]) -> str:
        values = (value.format(key=key, value=_plain(one)) for key, one in arguments.items())
        return begin.format(name=name) + "".join(values) + end

    return write


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({','.join(f'{key} = {value!r}' for key, value in arguments.items())})"


def _marked(open: str, close: str, quote: str) -> Write:
    literal = _literal(quote)
    return lambda name, arguments: f"{open}call:{name}{literal(arguments)}{close}"


def _turn(
    write: Write,
    *,
    thought: str = "",
    no_thought: str = "",
    text: str = "{}",
    first: str = "",
    between: str = "",
    last: str = "",
) -> Says:
    """Reasoning put into ``thought``, text into ``text``, then calls between ``first`` and ``last``."""

    def says(reasoning: str, content: str, calls: list[Call]) -> str:
        called = between.join(write(*call) for call in calls)
        parts = (
            thought.format(reasoning) if reasoning else no_thought,
            text.format(content) if content else "",
            f"{first}{called}{last}" if calls else "",
        )
        return "".join(parts)

    return says


def _harmony(reasoning: str, content: str, calls: list[Call]) -> str:
    messages = [f"<|channel|>analysis<|message|>{reasoning}"] if reasoning else []
    messages += [f"<|channel|>final<|message|>{content}"] if content else []
    messages += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}"
        for name, arguments in calls
    ]
    return "<|end|><|start|>assistant".join(messages)


def _kimi(reasoning: str, content: str, calls: list[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return content + (f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>" if calls else "")


_CHATML = ("<|im_start|>", "<|im_end|>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_CALLS = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
)
_MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]"),
)
_GEMMA_TURNS = ("<bos>", "<start_of_turn>", "<end_of_turn>")
_THINK = "<think>\n{}\n</think>\n\n"
_OPENED = "{}\n</think>\n\n"

_ALL = (
    Family(
        name="hermes",
        control=(*_CHATML, "<tool_call>", "</tool_call>", "<think>", "</think>"),
        end="<|im_end|>",
        says=_turn(
            lambda n, a: f"<tool_call>\n{_object()(n, a)}\n</tool_call>", thought=_THINK, text="{}\n", between="\n"
        ),
        shows_reasoning=True,
    ),
    Family(
        name="qwen-xml",
        control=(*_CHATML, "<tool_call>", "</tool_call>", "<think>", "</think>"),
        end="<|im_end|>",
        says=_turn(
            _tagged(
                "<tool_call>\n<function={name}>\n",
                "<parameter={key}>\n{value}\n</parameter>\n",
                "</function>\n</tool_call>",
            ),
            thought=_OPENED,
            no_thought="\n</think>\n\n",
            between="\n",
        ),
        shows_reasoning=True,
        rewrites_old=True,
    ),
    Family(
        name="llama",
        control=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
        bos="<|begin_of_text|>",
        end="<|eot_id|>",
        says=_turn(_object("parameters"), between="; "),
        parallel=False,
        shows_text_with_calls=False,
    ),
    Family(
        name="mistral",
        control=_MISTRAL,
        bos="<s>",
        end="</s>",
        says=_turn(_object(), first="[TOOL_CALLS] [", between=", ", last="]"),
    ),
    Family(
        name="mistral-named",
        control=_MISTRAL,
        bos="<s>",
        end="</s>",
        says=_turn(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}"),
    ),
    Family(
        name="deepseek-v3",
        control=(*_DEEPSEEK, *_DEEPSEEK_CALLS),
        bos="<｜begin▁of▁sentence｜>",
        end="<｜end▁of▁sentence｜>",
        says=_turn(
            lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>",
            first="<｜tool▁calls▁begin｜>",
            between="\n",
            last="<｜tool▁calls▁end｜>",
        ),
    ),
    Family(
        name="deepseek-v3.1",
        control=(*_DEEPSEEK, *_DEEPSEEK_CALLS, "<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        end="<｜end▁of▁sentence｜>",
        says=_turn(
            lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>",
            first="<｜tool▁calls▁begin｜>",
            last="<｜tool▁calls▁end｜>",
        ),
    ),
    Family(
        name="deepseek-v3.2",
        control=(*_DEEPSEEK, "｜DSML｜", "<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        end="<｜end▁of▁sentence｜>",
        says=_turn(
            _tagged(
                '<｜DSML｜invoke name="{name}">\n',
                '<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n',
                "</｜DSML｜invoke>\n",
            ),
            thought="{}</think>",
            no_thought="</think>",
            first="\n\n<｜DSML｜function_calls>\n",
            last="</｜DSML｜function_calls>",
        ),
        shows_reasoning=True,
        rewrites_old=True,
    ),
    Family(
        name="harmony",
        control=(
            *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
            *("<|end|>", "<|return|>", "<|call|>"),
        ),
        end="<|return|>",
        call_end="<|call|>",
        says=_harmony,
        parallel=False,
        shows_text_with_calls=False,
        shows_reasoning=True,
    ),
    Family(
        name="gemma",
        control=_GEMMA_TURNS,
        bos="<bos>",
        end="<end_of_turn>",
        says=_turn(_python, text="{}\n", first="```tool_code\n", between="\n", last="\n```"),
    ),
    Family(
        name="gemma4",
        control=(
            *("<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>"),
            *("<tool_response|>", '<|"|>', "<|channel>", "<channel|>"),
        ),
        bos="<bos>",
        end="<turn|>",
        call_end="<|tool_response>",
        result_end="<tool_response|>",
        says=_turn(_marked("<|tool_call>", "<tool_call|>", '<|"|>'), thought="<|channel>thought\n{}<channel|>"),
        shows_reasoning=True,
    ),
    Family(
        name="functiongemma",
        control=(
            *(*_GEMMA_TURNS, "<escape>", "<start_function_call>", "<end_function_call>", "<start_function_response>"),
            *("<end_function_response>", "<start_function_declaration>", "<end_function_declaration>"),
        ),
        bos="<bos>",
        end="<end_of_turn>",
        call_end="<start_function_response>",
        result_end="<end_function_response>",
        says=_turn(_marked("<start_function_call>", "<end_function_call>", "<escape>")),
    ),
    Family(
        name="glm",
        control=(
            *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>"),
            *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
        end="<|user|>",
        call_end="<|observation|>",
        says=_turn(
            _tagged(
                "<tool_call>{name}",
                "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>",
                "</tool_call>",
            ),
            thought="\n<think>{}</think>\n",
            no_thought="\n<think></think>\n",
            text="{}",
            first="\n",
            between="\n",
        ),
        shows_reasoning=True,
    ),
    Family(
        name="kimi",
        control=(
            *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        end="<|im_end|>",
        says=_kimi,
    ),
    Family(
        name="kimi-k3",
        control=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        end="<|end_of_msg|>",
        says=_turn(
            _tagged(
                '<|open|>call tool="{name}" index="1"<|sep|>',
                '<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>',
                "<|close|>call<|sep|>",
            ),
            thought="{}<|close|>think<|sep|>",
            no_thought="<|close|>think<|sep|>",
            text="<|open|>response<|sep|>{}<|close|>response<|sep|>",
            first="<|open|>tools<|sep|>",
            last="<|close|>tools<|sep|>",
        ),
        shows_reasoning=True,
    ),
    Family(
        name="lfm2",
        control=(
            *(*_CHATML, "<|startoftext|>", "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>"),
            *("<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"),
        ),
        bos="<|startoftext|>",
        end="<|im_end|>",
        says=_turn(_python, first="<|tool_call_start|>[", between=", ", last="]<|tool_call_end|>"),
    ),
    Family(
        name="granite",
        control=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
        end="<|end_of_text|>",
        says=_turn(_object(), first="<|tool_call|>[", between=", ", last="]"),
    ),
    Family(
        name="minimax",
        control=("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
        end="[e~[",
        says=_turn(
            _tagged('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n"),
            thought=_OPENED,
            no_thought="\n</think>\n\n",
            first="<minimax:tool_call>\n",
            last="</minimax:tool_call>",
        ),
        shows_reasoning=True,
        rewrites_old=True,
        opens_reasoning=True,
    ),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})
"""By the name of the format."""

BUILT_IN: Mapping[str, Family] = MappingProxyType(
    {
        f"built-in {name}": Family(
            name="hermes",
            built_in=name,
            control=marks.marks,
            says=_turn(
                lambda n, a: f"<tool_call>\n{_object()(n, a)}\n</tool_call>", text="{}\n", between="\n", last="\n"
            ),
            end=marks.assistant[1].strip(),
        )
        for name, marks in TURN_MARKS.items()
    }
)
"""The built-in templates, whose models write as Hermes does."""
