"""What ``--serve-args`` tells those servers that only have to make the same prompts of the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import click

from anchorline.cli.serve import serve
from anchorline.errors import ConfigError
from anchorline.limits import Limits

RENDERING = frozenset(
    {
        *("chat_template", "tool_format", "float_volatile", "canonical_tools", "pin_date"),
        *("exact", "override_metadata"),
        *(limit.name for limit in fields(Limits)),
    }
)
"""Settings of a server on which it depends what a request's prompt is, where it is cut, and whether it is refused."""


def rendering_arguments(arguments: Sequence[str]) -> list[str]:
    """Those of ``anchorline serve``'s ``arguments`` that set one of RENDERING. Raises ConfigError."""
    try:
        given, _, order = serve.make_parser(click.Context(serve)).parse_args(list(arguments))
    except click.UsageError as error:
        raise ConfigError(f"--serve-args: {error.format_message()}") from error
    chosen: list[str] = []
    for param in dict.fromkeys(order):
        if isinstance(param, click.Option) and param.name in RENDERING:
            value = given[param.name]
            for each in value if param.multiple else [value]:
                chosen += [param.opts[0]] if param.is_flag else [param.opts[0], each]
    return chosen
