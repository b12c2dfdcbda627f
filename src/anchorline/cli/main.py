"""The ``anchorline`` command: its sub-commands, and what a person sees when one of them fails."""

from __future__ import annotations

import click

from anchorline import __version__
from anchorline.cli.bench import bench
from anchorline.cli.cache import cache_group
from anchorline.cli.demo import demo
from anchorline.cli.doctor import doctor
from anchorline.cli.fit import fit_command
from anchorline.cli.record import record
from anchorline.cli.replay import replay
from anchorline.cli.serve import serve
from anchorline.cli.simulate import simulate
from anchorline.cli.suggest import SuggestingGroup


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="anchorline")
def cli() -> None:
    """Serve a GGUF model to OpenAI and Anthropic clients without prefilling the same prefix twice."""


cli.add_command(serve)
cli.add_command(fit_command)
cli.add_command(cache_group)
cli.add_command(demo)
cli.add_command(replay)
cli.add_command(bench)
cli.add_command(simulate)
cli.add_command(doctor)
cli.add_command(record)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="anchorline")
