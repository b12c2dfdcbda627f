"""Commands whose mistakes come back as one clear line that names the nearest valid thing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import click

from anchorline.refusal import refusing

LIKENESS_MIN = 0.7
"""As much must a name be like what was typed, by ``difflib``'s ratio, to be what was meant."""


class SuggestingCommand(click.Command):
    """A command that names the nearest option when one is unknown, and shows options by section."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
            options = [name for name in known if name.startswith("-")]
            typed = _as_typed(error.option_name, given, options)
            raise click.UsageError(f"No such option: {typed}{suggestion(typed, options)}", ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section if len(sections) > 1 else "Options"):
                formatter.write_dl(records)


class SuggestingGroup(click.Group):
    """A group that names the nearest command, and turns our own errors into one line and an exit code."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = suggestion(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command: {name}{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with refusing():
            return super().invoke(ctx)


def suggestion(text: str, known: Sequence[str]) -> str:
    """The end of an error that asks for the known name most like ``text``; empty where none is like it."""
    near = difflib.get_close_matches(text, known, n=1, cutoff=LIKENESS_MIN)
    return f"; did you mean {near[0]}?" if near else ""


def _as_typed(reported: str, given: list[str], known: list[str]) -> str:
    """The whole argument that was refused: click reports ``-n`` for an unknown ``-ngx``."""
    for argument in given:
        name = argument.split("=", 1)[0]
        if name.startswith(reported) and name not in known:
            return name
    return reported
