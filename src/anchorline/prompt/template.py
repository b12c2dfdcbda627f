"""Chat templates: Jinja in a sandbox, as model files carry them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anchorline.errors import ConfigError, RequestError
from anchorline.prompt.bounds import bind, check_fields, check_method, check_operands, check_width, install, rendering

Clock = Callable[[], datetime]

RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})

_JSON_TEXTS = "anchorline_json_texts"
_GUARD = "anchorline_guard"

_TAKING_APART = frozenset(
    {
        "split",
        "rsplit",
        "partition",
        "rpartition",
        "replace",
        "removeprefix",
        "removesuffix",
        "strip",
        "lstrip",
        "rstrip",
    }
)

# What a template can fail with on a client's input; anything else would be our own bug.
_RENDER_ERRORS = (
    *(TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError),
)


class GivenList(list[Any]):
    """A list of the request, which a template must not change; lists it made itself it may."""


_DICT_ATTRIBUTES = frozenset(dir(dict))
_LIST_CHANGES = frozenset({"append", "extend", "insert", "pop"})


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the trained-on text; it renders as its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on what one operator or call can make."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        # What the sandbox does for plain dicts in the end, without asking first whether it is safe:
        # a template spends most of its time on ``message.role`` and the like.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates collect things in lists of their own.
        return (type(obj) is list and attr in _LIST_CHANGES) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    # The first two have names that no argument of a template's call can have.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_method(__obj, args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_fields(value.__self__)
        return wrapped


JsonTexts = dict[int, tuple[object, dict[object, str]]]
"""JSON texts of values that are rendered again and again: id → (the value, options → text).

The value is held, so its id cannot be taken by another, and the sandbox keeps templates from
changing it. Two threads that fill in a text both write the same one.
"""


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's filter writes it: nothing is HTML-escaped, text stays readable."""
    check_width(indent)
    options = (ensure_ascii, indent, (separators[0], separators[1]) if separators else None, sort_keys)
    known: JsonTexts = context.get(_JSON_TEXTS) or {}
    entry = known.get(id(value))
    if entry is None:
        return _dumps(value, context.get(_GUARD), *options)
    text = entry[1].get(options)
    if text is None:
        text = entry[1][options] = _dumps(value, context.get(_GUARD), *options)
    return text


def _dumps(
    value: Any,
    guard: str,
    ensure_ascii: bool,
    indent: int | None,
    separators: tuple[str, str] | None,
    sort_keys: bool,
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # The guard must stay itself to be found and removed again.
    return re.sub(rf"[^\x00-\x7f{guard}]", _escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _markers(tree: nodes.Template) -> tuple[str, ...]:
    """Constant arguments of methods and filters that take text apart, without surrounding white space."""
    calls = [call for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    taking_apart = [call.args for call in calls if cast(nodes.Getattr, call.node).attr in _TAKING_APART]
    taking_apart += [node.args for node in tree.find_all(nodes.Filter) if node.name in _TAKING_APART]
    found = {
        argument.value.strip()
        for arguments in taking_apart
        for argument in arguments
        if isinstance(argument, nodes.Const) and isinstance(argument.value, str)
    }
    return tuple(sorted(found - {""}))


def _literals(tree: nodes.Template) -> tuple[str, ...]:
    found = {node.data for node in tree.find_all(nodes.TemplateData)}
    found |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return tuple(sorted(found - {""}))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class ChatTemplate:
    """One compiled chat template. Thread-safe.

    ``markers`` are the strings at which it may take text apart (``split('</think>')``), ``literals``
    all the strings it may write; ``prompt.guard`` needs both.
    Raises ConfigError when the source cannot be compiled.
    """

    def __init__(self, source: str, *, name: str = "chat template") -> None:
        self.source = source
        self.name = name
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag], cache_size=0
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        install(environment)
        try:
            tree = environment.parse(source)
            self.markers = _markers(tree)
            self.literals = _literals(tree)
            self._template = environment.from_string(bind(tree, environment))
        except TemplateSyntaxError as error:
            raise ConfigError(f"--chat-template: {name} cannot be compiled: line {error.lineno}: {error}") from error
        except (TemplateError, RecursionError) as error:
            raise ConfigError(f"--chat-template: {name} cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        bos_token: str,
        eos_token: str,
        kwargs: Mapping[str, Any],
        now: datetime,
        guard: str = "",
        json_texts: JsonTexts | None = None,
    ) -> str:
        """The prompt's text. ``now`` is what ``strftime_now`` shows; ``guard`` stays unescaped in JSON;
        ``json_texts`` holds texts of values that come again.

        Raises RequestError naming ``messages`` with the template's own message, and its kind TemplateLimit
        when the render goes past the limits that ``bounds.bounded`` sets.
        """
        try:
            with rendering():
                return self._template.render(
                    {
                        **kwargs,
                        "messages": GivenList(messages),
                        "tools": tools,
                        "add_generation_prompt": add_generation_prompt,
                        "bos_token": bos_token,
                        "eos_token": eos_token,
                        "strftime_now": now.strftime,
                        _GUARD: guard,
                        _JSON_TEXTS: json_texts,
                    }
                )
        except _RENDER_ERRORS as error:
            text = str(error) or type(error).__name__
            raise RequestError(
                f"the chat template cannot render these messages: {text}", field="messages", code="template_error"
            ) from error
