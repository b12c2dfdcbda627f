"""``anchorline demo``: a short agent session against a server of its own, or a running one."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack

import click

from anchorline.bench.client import Client
from anchorline.bench.demo import DemoCall, DemoFailed, DemoReport, run_demo, table_of
from anchorline.bench.process import start_anchorline
from anchorline.cli.signals import ending_with_servers
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import plain_console, show_table


@click.command(cls=SuggestingCommand)
@click.option("--model", default="smollm2", show_default=True, help="Model to serve, as for 'anchorline serve'.")
@click.option("--serve-args", default="", help="More options for 'anchorline serve', as one string.")
@click.option("--url", default=None, help="Use the server that listens here instead of starting one.")
@click.option("--api-key", default=None, help="Key for the server at --url.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@ending_with_servers()
def demo(*, model: str, serve_args: str, url: str | None, api_key: str | None, as_json: bool) -> None:
    """Run a short agent session and show what each call prefilled.

    Exits with 1 when a call restored less than what earlier calls had left in the cache.
    """
    console = plain_console(stderr=True)
    with ExitStack() as stack:
        if url is None:
            console.print(f"starting a server with {model} …")
            server = stack.enter_context(start_anchorline([model, *shlex.split(serve_args)]))
            url = server.wait_until_listening()
        client = stack.enter_context(Client(url, api_key=api_key))
        name = client.model_name()
        calls: list[DemoCall] = []
        for call in run_demo(client):
            calls.append(call)
            console.print(f"  {call.name}: {call.prefilled_tokens} of {call.prompt_tokens} tokens prefilled")
    report = DemoReport(model=name, calls=tuple(calls))
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        show_table(table_of(report))
    if report.failures:
        raise DemoFailed("the cache fell short\n  " + "\n  ".join(report.failures))
