"""Whether and how long the model thinks: the fields for it, and the options that templates may be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorline.api.ranges import INT32_MAX, Numeric, Range, check_whole
from anchorline.errors import RequestError
from anchorline.prompt.effort import EFFORTS

TEMPLATE_KWARGS = (
    "add_thoughts",
    "builtin_tools",
    "clear_thinking",
    "controls",
    "current_date",
    "date_string",
    "documents",
    "enable_thinking",
    "keep_all_reasoning",
    "keep_thinking",
    "low_effort",
    "model_identity",
    "preserve_reasoning",
    "preserve_thinking",
    "python_tools",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "thinking_budget",
    "thinking_effort",
    "thinking_mode",
    "tools_in_user_message",
    "truncate_history_thinking",
    "xml_tools",
)
"""Options that published chat templates read. Others are refused: a template may use any name inside."""

REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")

_BUDGET = Range(low=-1, high=INT32_MAX, whole=True)


def template_kwargs(given: Mapping[str, Any] | None, *, enable_thinking: bool | None) -> dict[str, Any]:
    """The options for the template; those in ``chat_template_kwargs`` win. Raises RequestError."""
    unknown = sorted(set(given or ()) - set(TEMPLATE_KWARGS))
    if unknown:
        raise RequestError(
            f"chat_template_kwargs.{unknown[0][:40]} is not known; allowed are {', '.join(TEMPLATE_KWARGS)}",
            field="chat_template_kwargs",
            code="unsupported_value",
        )
    switches = {} if enable_thinking is None else {"enable_thinking": enable_thinking, "thinking": enable_thinking}
    return {**switches, **(given or {})}


def check_effort(value: str | None, *, field: str = "reasoning_effort") -> str | None:
    """``value``, one of EFFORTS. Raises RequestError naming ``field``."""
    if value is not None and value not in EFFORTS:
        raise RequestError(f"{field} must be one of {', '.join(EFFORTS)}, not {value[:40]!r}", field=field)
    return value


def check_budget(values: Mapping[str, Numeric]) -> int | None:
    """The one budget given, under whichever name; -1 means none. The last name wins. Raises RequestError."""
    chosen: int | None = None
    for name, value in values.items():
        budget = check_whole(name, value, allowed=_BUDGET)
        if budget is not None:
            chosen = budget
    return None if chosen == -1 else chosen


def check_reasoning_format(value: str | None) -> bool:
    """Whether llama-server's ``reasoning_format`` wants reasoning told apart. Raises RequestError."""
    if value is not None and value not in REASONING_FORMATS:
        raise RequestError(
            f"reasoning_format must be one of {', '.join(REASONING_FORMATS)}, not {value[:40]!r}",
            field="reasoning_format",
        )
    return value != "none"
