"""``anchorline replay``: recorded calls, sent again to servers that it starts, or to one that runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from anchorline.bench.calls import REPLY_TOKENS
from anchorline.bench.live.blocks import BLOCK_TOKENS
from anchorline.cli import replay_running, replay_started
from anchorline.cli.options import SettingOption
from anchorline.cli.replay_servers import Options
from anchorline.cli.signals import ending_with_servers
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.values import PaceType
from anchorline.errors import ConfigError
from anchorline.numbers import FiniteRangeType, IntegerRangeType

MOST_CALLS = 256
"""Threads that wait for a reply each."""

CALLS = "Calls"
RUNNING = "A server that runs (with --url)"
STARTED = "Servers started here (without --url)"
REPORT = "Report"

OPTIONS = (
    SettingOption(
        "--mix",
        "mixed",
        section=CALLS,
        is_flag=True,
        help="Replay the traces as one, round-robin, with a second session of the first.",
    ),
    SettingOption(
        "--at-once",
        section=CALLS,
        is_flag=True,
        help="All traces (with --mix: of the mix) at the same time on one server, each in its own order.",
    ),
    SettingOption(
        "--max-tokens",
        section=CALLS,
        type=IntegerRangeType(1),
        default=REPLY_TOKENS,
        show_default=True,
        help="Longest reply.",
    ),
    SettingOption(
        "--limit",
        section=CALLS,
        type=IntegerRangeType(1),
        default=None,
        help="Replay only this many calls of each trace.",
    ),
    SettingOption(
        "--pace",
        section=CALLS,
        type=PaceType(),
        default="none",
        show_default=True,
        help="Time between calls: recorded, so many times as fast, or none; without --url it needs --at-once.",
    ),
    SettingOption(
        "--url",
        section=RUNNING,
        default=None,
        help="Replay against this server: any that speaks OpenAI's or Anthropic's protocol.",
    ),
    SettingOption(
        "--api-key",
        section=RUNNING,
        default=None,
        envvar="ANCHORLINE_API_KEY",
        show_envvar=True,
        help="The server's API key.",
    ),
    SettingOption(
        "--model-name",
        section=RUNNING,
        default=None,
        show_default="the first that it lists",
        help="The model to ask for.",
    ),
    SettingOption(
        "--concurrency",
        section=RUNNING,
        type=IntegerRangeType(1, MOST_CALLS),
        default=None,
        show_default="1; with --at-once one call of each trace",
        help="Most calls at the same time; with more than 1, calls that overlapped when recorded do so again.",
    ),
    SettingOption(
        "--warm-up",
        section=RUNNING,
        type=IntegerRangeType(0, MOST_CALLS),
        default=1,
        show_default=True,
        help="Calls sent before any is measured: the shortest ones, salted apart.",
    ),
    SettingOption(
        "--salt",
        section=RUNNING,
        default=None,
        show_default="random",
        help="Word put in front of every prompt, so that runs don't feed each other.",
    ),
    SettingOption("--no-salt", section=RUNNING, is_flag=True, help="Send prompts as they were recorded."),
    SettingOption(
        "--block-tokens",
        section=RUNNING,
        type=IntegerRangeType(1, 1 << 16),
        default=BLOCK_TOKENS,
        show_default=True,
        help="Tokens in a block of traces that have hash_ids.",
    ),
    SettingOption(
        "--model", section=STARTED, default="smollm2", show_default=True, help="A GGUF file, 'smollm2' or 'test:ARCH'."
    ),
    SettingOption(
        "--layers",
        section=STARTED,
        type=IntegerRangeType(1),
        default=None,
        help="Keep only this many layers of the model.",
    ),
    SettingOption(
        "--ctx",
        "context_tokens",
        section=STARTED,
        type=IntegerRangeType(256, 1 << 20),
        default=65536,
        show_default=True,
        help="As for serve.",
    ),
    SettingOption(
        "--flash-attn",
        "flash_attention",
        section=STARTED,
        type=click.Choice(["on", "off", "auto"]),
        default="auto",
        show_default=True,
        help="Flash attention of each server. Without it, CPUs read long prompts faster.",
    ),
    SettingOption(
        "--serve-args", section=STARTED, default="", help="More options for 'anchorline serve', as one string."
    ),
    SettingOption(
        "--compare-no-cache",
        "compare",
        section=STARTED,
        is_flag=True,
        help="Every answer must equal a --no-cache server's (--exact).",
    ),
    SettingOption(
        "--compare-every",
        section=STARTED,
        type=IntegerRangeType(1),
        default=1,
        show_default=True,
        help="Compare the answers of every so many calls only: without a cache a long trace takes hours.",
    ),
    SettingOption(
        "--peer",
        section=STARTED,
        type=click.Choice(["llama-server"]),
        default=None,
        help="Feed the same token ids to a peer.",
    ),
    SettingOption(
        "--peer-python", section=STARTED, default=sys.executable, help="The Python that has the peer's package."
    ),
    SettingOption(
        "--peer-cache-ram-mib",
        section=STARTED,
        type=IntegerRangeType(0, 1 << 24),
        default=None,
        help="The peer's RAM cache; default 8192.",
    ),
    SettingOption(
        "--threads",
        section=STARTED,
        type=IntegerRangeType(1, 512),
        default=1,
        show_default=True,
        help="Threads of each server.",
    ),
    SettingOption(
        "--parallel",
        section=STARTED,
        type=IntegerRangeType(1, 250),
        default=4,
        show_default=True,
        help="Streams of each server.",
    ),
    SettingOption(
        "--at-cuts",
        section=REPORT,
        is_flag=True,
        help="Hold stateful models against an oracle that, like them, resumes only at cuts.",
    ),
    SettingOption(
        "--max-ratio",
        section=REPORT,
        type=FiniteRangeType(1.0),
        default=None,
        show_default=f"{replay_started.MAX_RATIO}; with --url none, nor with --compare-no-cache, since exact mode "
        "resumes at cuts alone",
        help="Fail above this ratio.",
    ),
    SettingOption(
        "--html",
        section=REPORT,
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        default=None,
        help="With --url: also write a page with plots to this file.",
    ),
    SettingOption(
        "--json",
        "as_json",
        section=REPORT,
        is_flag=True,
        help="Print one JSON list, with every call, instead of a table.",
    ),
)
URL_ONLY = frozenset({"html"})
"""Options of other sections that have a meaning for a running server alone."""


@ending_with_servers()
def _replay(*, trace: tuple[Path, ...], mixed: bool, max_ratio: float | None, as_json: bool, **values: Any) -> None:
    """Replay recorded calls, and compare with a perfect prefix cache.

    TRACE is a file that 'anchorline record' wrote. With --url its calls go to a server that runs, and times, what it
    says that it restored and prefilled, and an oracle are reported; traces of lengths and hash_ids are replayed, too.
    Without, Anchorline is started for each trace (with --at-once for all), chat completions are replayed and other
    calls left out. Exits with 1 when a ratio is over --max-ratio, an answer differs, a call was refused, or what was
    restored and prefilled is not the prompt.
    """
    running = {option.name: values.pop(str(option.name)) for option in _specific(RUNNING)}
    started = {option.name: values.pop(str(option.name)) for option in _specific(STARTED)}
    if running["url"] is None:
        _refuse(_specific(RUNNING), why="needs --url")
        options = Options(**{**started, **values, "serve_args": tuple(shlex.split(started["serve_args"]))})
        replay_started.run(trace, options, mixed=mixed, max_ratio=max_ratio, as_json=as_json)
    else:
        _refuse(_specific(STARTED), why="is for servers that replay starts, and --url names one that runs")
        replay_running.run(
            trace,
            replay_running.Options(**running, **values),
            mixed=mixed,
            max_ratio=max_ratio,
            as_json=as_json,
        )


def _specific(section: str) -> list[SettingOption]:
    """The options that mean something with ``--url`` alone, or without it alone."""
    return [
        option
        for option in OPTIONS
        if option.section == section or (section == RUNNING and str(option.name) in URL_ONLY)
    ]


def _refuse(options: Iterable[SettingOption], *, why: str) -> None:
    """Raise ConfigError for the first of ``options`` that was given on the command line."""
    context = click.get_current_context()
    for option in options:
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
            raise ConfigError(f"{option.opts[0]} {why}")


TRACE = click.Argument(["trace"], nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
replay = SuggestingCommand("replay", callback=_replay, help=_replay.__doc__, params=[TRACE, *OPTIONS])
