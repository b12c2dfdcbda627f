"""What a chat template may use up: time, steps, and the length of what it makes.

Templates come with model files, and what clients send makes them work more or less. Into a parsed
template steps are put (one for each turn of a loop and each call of a macro), and around every
expression that makes a new value a look at its length; the sandbox refuses beforehand what would make
too much in one go. Python's own functions are not interrupted: their input is bounded instead.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from jinja2 import Environment, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from anchorline.errors import RequestError
from anchorline.limits import Limits

REPEAT_LIMIT = 1 << 20
"""Longest list a template may build, longest text of ``*``, and largest exponent base and power."""

NUMBER_BITS = 1 << 16
"""Longest whole number a template may compute."""

PAD_LIMIT = 4096
"""Widest text that padding may make."""

COPIES = 32
"""How many times the longest text a template may make in all, counting every value on the way."""

_STEP, _SIZED = "anchorline_step", "anchorline_sized"
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5,})")
_WIDE_FIELD = re.compile(r"\{[^{}]*:[^{}]*(?:\{|\d{5,})")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill"})

Node = TypeVar("Node", bound=nodes.Node)


class TemplateLimit(RequestError):
    """The template used up what a request's renders may; the message names the flag."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the chat template {message}", field="messages", code="template_limit")


class Budget:
    """What the renders of one request may use up together."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._seconds_left = limits.template_seconds
        self._steps_left = limits.template_steps
        self._chars_left = COPIES * limits.template_chars
        self._end_seconds = 0.0

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Only what is rendered counts, not what is done between two renders."""
        self._end_seconds = self._clock() + self._seconds_left
        try:
            yield
        finally:
            self._seconds_left = self._end_seconds - self._clock()

    def cancel(self) -> None:
        """Let whatever is rendered within this budget fail at its next step; for any thread."""
        self._seconds_left = self._end_seconds = -math.inf

    def step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateLimit(f"takes more than {self.limits.template_steps} steps (--max-template-steps)")
        self.look_at_time()

    def look_at_time(self) -> None:
        if self._clock() > self._end_seconds:
            raise TemplateLimit(f"takes longer than {self.limits.template_seconds:g} seconds (--max-template-seconds)")

    def made(self, chars: int) -> None:
        """A text of this length was made, or is about to be."""
        self._chars_left -= chars
        if chars > self.limits.template_chars or self._chars_left < 0:
            raise TemplateLimit(f"makes more than {self.limits.template_chars} characters (--max-template-chars)")


_BUDGET: ContextVar[Budget] = ContextVar("anchorline_template_budget")


@contextmanager
def bounded(budget: Budget) -> Iterator[None]:
    """Give all renders inside one budget; a render outside of any gets one of the defaults for itself."""
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)


@contextmanager
def rendering() -> Iterator[None]:
    """One render, within the budget around it. Raises TemplateLimit from inside."""
    budget = _BUDGET.get(None)
    token = _BUDGET.set(Budget(Limits())) if budget is None else None
    try:
        with _BUDGET.get().rendering():
            yield
    finally:
        if token is not None:
            _BUDGET.reset(token)


def bind(tree: nodes.Template, environment: Environment) -> nodes.Template:
    """Put steps and looks into a parsed template of an environment that ``install`` was called for."""
    _Binder().generic_visit(tree)
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(_step(loop), lineno=loop.lineno))
        if loop.test is not None:
            loop.test = nodes.And(_step(loop), loop.test, lineno=loop.lineno)
    macros: list[nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
    for block in macros:
        block.body.insert(0, nodes.ExprStmt(_step(block), lineno=block.lineno))
    tree.set_environment(environment)
    return tree


def install(environment: Environment) -> None:
    """Add the filters that ``bind`` uses, and bound those that make much of little."""
    filters = environment.filters
    filters[_STEP], filters[_SIZED] = _take_step, _sized
    for name, check in _FILTER_CHECKS.items():
        filters[name] = _checked(filters[name], check)
    filters["join"] = _join
    del environment.globals["lipsum"]
    environment.concat = concat  # type: ignore[method-assign]


def _step(near: nodes.Node) -> nodes.Filter:
    return nodes.Filter(nodes.Const(True), _STEP, [], [], None, None, lineno=near.lineno)


class _Binder(NodeTransformer):
    """Puts ``sized`` around every expression that can make a long value."""

    def _wrap(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return nodes.Filter(node, _SIZED, [], [], None, None, lineno=node.lineno)

    visit_Add = visit_Concat = visit_Mod = visit_Call = visit_Filter = _wrap

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        if isinstance(node.arg, nodes.Slice):
            return self._wrap(node)
        self.generic_visit(node)
        return node

    def _keep(self, node: Node) -> Node:
        """These want a bare call or filter; their own result is looked at where it is put together."""
        self.generic_visit(node)
        for name in ("call", "filter"):
            inner = getattr(node, name, None)
            if isinstance(inner, nodes.Filter) and inner.name == _SIZED:
                setattr(node, name, inner.node)
        return node

    visit_CallBlock = visit_FilterBlock = visit_AssignBlock = _keep


@pass_context  # so that it is not computed once, when the template is compiled
def _take_step(_context: Context, go_on: bool) -> bool:
    _BUDGET.get().step()
    return go_on


def _sized(value: Any) -> Any:
    """``value``, once its length was looked at."""
    if isinstance(value, str):
        if len(value) > PAD_LIMIT and (budget := _BUDGET.get(None)) is not None:
            budget.made(len(value))
    elif isinstance(value, list | tuple):
        if len(value) > REPEAT_LIMIT:
            raise SecurityError("a list is too long")
    elif isinstance(value, int) and value.bit_length() > NUMBER_BITS:
        raise SecurityError("a number is too large")
    return value


def concat(parts: Iterable[str]) -> str:
    """What the parts of an output, a macro or a block are joined with."""
    budget = _BUDGET.get(None)
    if budget is None:
        return "".join(parts)
    if isinstance(parts, list):
        budget.made(sum(map(len, parts)))
        return "".join(parts)
    kept, chars = [], 0
    for part in parts:
        chars += len(part)
        if chars > budget.limits.template_chars:
            budget.made(chars)
        budget.look_at_time()
        kept.append(part)
    return "".join(kept)


# -- before something is made -------------------------------------------------------------------


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Raise SecurityError for a ``*``, ``**`` or ``%`` that would make too much."""
    if operator == "**" and isinstance(right, int) and (abs(right) > 64 or abs(left) > REPEAT_LIMIT):
        raise SecurityError("a power is too large")
    if operator == "%" and isinstance(left, str):
        check_format(left)
    if operator != "*":
        return
    for sized, count in ((left, right), (right, left)):
        if isinstance(sized, str | list | tuple) and isinstance(count, int) and len(sized) * count > REPEAT_LIMIT:
            raise SecurityError("a repetition is too long")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > NUMBER_BITS:
        raise SecurityError("a number is too large")


def check_format(text: str) -> None:
    """Raise SecurityError for a ``%`` format with a wide or a given width."""
    if _WIDE_FORMAT.search(text):
        raise SecurityError("a format is too wide")


def check_fields(text: str) -> None:
    """The same for ``str.format``."""
    if _WIDE_FIELD.search(text):
        raise SecurityError("a format is too wide")


def check_method(method: Any, args: tuple[Any, ...]) -> None:
    """Raise SecurityError for a call of a text's or list's own method that would make too much."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, str):
        name = getattr(method, "__name__", "")
        if name in _PADDING and args:
            check_width(args[0])
        elif name == "expandtabs":
            raise SecurityError("tabs are not expanded")
        elif name == "replace" and len(args) > 1:
            _check_replace(owner, args[0], args[1])
        elif name == "join" and args:
            _check_join(args[0], owner)
    elif type(owner) is list and len(owner) + max(map(_length, args), default=0) >= REPEAT_LIMIT:
        raise SecurityError("a list is too long")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | Mapping) else 1


def check_width(width: Any) -> None:
    """Raise SecurityError for a number, or a text, that is too wide to pad or to indent with."""
    if (isinstance(width, int) and abs(width) > PAD_LIMIT) or (isinstance(width, str) and len(width) > PAD_LIMIT):
        raise SecurityError("a width is too large")


def _check_replace(s: Any, old: Any, new: Any, count: Any = None) -> None:
    budget = _BUDGET.get(None)
    if budget is None or not all(isinstance(value, str) for value in (s, old, new)):
        return
    if len(s) * len(new) > budget.limits.template_chars and len(new) > len(old):
        budget.made(len(s) + s.count(old) * (len(new) - len(old)))


def _check_join(values: Any, separator: Any) -> None:
    budget = _BUDGET.get(None)
    if budget is not None and isinstance(values, list | tuple):
        chars = sum(len(value) for value in values if isinstance(value, str)) + _length(separator) * len(values)
        if chars > budget.limits.template_chars:
            budget.made(chars)


@pass_eval_context
def _join(eval_ctx: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's own ``join``, with a look at what it is given."""
    items = list(value if attribute is None else map(make_attrgetter(eval_ctx.environment, attribute), value))
    _check_join(items, d)
    return d.join(map(str, items))


# The parameters have the filters' own names, since they may be given by name.
_FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "center": lambda value, width=80: check_width(width),
    "indent": lambda s, width=4, first=False, blank=False: check_width(width),
    "slice": lambda value, slices, fill_with=None: check_width(slices),
    "batch": lambda value, linecount, fill_with=None: check_width(linecount),
    "format": lambda value, *args, **kwargs: check_format(str(value)),
    "replace": _check_replace,
}


def _checked(made: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    skipped = 1 if hasattr(made, "jinja_pass_arg") else 0  # such are given a context first

    @functools.wraps(made)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args[skipped:], **kwargs)
        return made(*args, **kwargs)

    return checked
