"""``anchorline cache``: what a running server keeps, seen and changed over its HTTP interface."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import click
import msgspec
from click.core import ParameterSource
from rich.table import Table

from anchorline.bench.client import CallFailed, Client, told_as
from anchorline.bench.foreign_json import Kind, told
from anchorline.bench.reported import Count
from anchorline.cli.cache_disk import DISK_COMMANDS, DISK_HELP, list_disk
from anchorline.cli.suggest import SuggestingCommand, SuggestingGroup
from anchorline.cli.tables import plain_console, show_table
from anchorline.cli.values import format_size
from anchorline.cli.warm_file import read_prefixes
from anchorline.config import ServerConfig
from anchorline.limits import Limits
from anchorline.refusal import Refusal
from anchorline.terminal import printable

DEFAULT_URL = f"http://{ServerConfig().host}:{ServerConfig().port}"
FOREVER = "none"
"""The TTL of an anchor that stays until it is deleted."""

TTL_HELP = "How long it stays after its last use: 5m, 1h, seconds, or none for no end."

Size = Annotated[int, msgspec.Meta(ge=0)]


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells of a pin wherever it names one."""

    id: str
    name: str | None
    tokens: Count
    bytes: Size


class Anchor(Pin, frozen=True, kw_only=True):
    kind: str
    expires_in_seconds: float | None
    tool_fingerprint: str | None


class WarmedAnchor(Anchor, frozen=True, kw_only=True):
    prefilled_tokens: Count


class AnchorList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Anchor]
    pinned_bytes: Size
    parked_pinned_bytes: Size = 0
    pin_budget_bytes: Size


@click.group("cache", cls=SuggestingGroup)
def cache_group() -> None:
    """See and change what a server keeps, in RAM or on disk.

    --url, --api-key, --model and --json follow the command: anchorline cache ls --url http://127.0.0.1:8080
    """


for disk_command in DISK_COMMANDS:
    cache_group.add_command(disk_command)


def _speaking(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` a client for the server, made from the options that all commands share."""

    @click.option(
        "--url",
        default=DEFAULT_URL,
        show_default=True,
        envvar="ANCHORLINE_URL",
        show_envvar=True,
        help="Where the server is.",
    )
    @click.option(
        "--api-key", default=None, envvar="ANCHORLINE_API_KEY", show_envvar=True, help="The server's API key."
    )
    @click.option(
        "--model", default=None, metavar="NAME", help="Which of a server's models is meant. Default: the loaded one."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
    @wraps(command)
    def speaking(*, url: str, api_key: str | None, model: str | None, **options: Any) -> None:
        query = {} if model is None else {"model": model}
        with Client(url, api_key=api_key, query=query) as client, _telling_what_is_pinned():
            command(client=client, **options)

    return speaking


@contextmanager
def _telling_what_is_pinned() -> Iterator[None]:
    """A refusal for want of room lists what takes it."""
    try:
        yield
    except CallFailed as error:
        pinned = _pins(error.details.get("pinned"))
        if not pinned:
            raise
        lines = (f"{printable(pin.id)}  {_name(pin)}  {pin.tokens} tokens  {format_size(pin.bytes)}" for pin in pinned)
        raise Refusal("\n  ".join([str(error), *lines])) from error


def _pins(value: object) -> list[Pin]:
    """Empty for what are none."""
    try:
        return told(value, list[Pin])
    except ValueError:
        return []


def _answered(kind: type[Kind], answer: object, client: Client) -> Kind:
    """``answer``, which the server gave, as a ``kind``. Raises CallFailed when it is none."""
    return told_as(kind, answer, what=f"the answer of {client.url}")


@cache_group.command("warm", cls=SuggestingCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--whole", is_flag=True, help="Keep all messages of each request, not its tools and system prompt alone.")
@click.option("--ttl", default=FOREVER, show_default=True, help=TTL_HELP)
@_speaking
def warm(*, client: Client, file: Path, whole: bool, ttl: str, as_json: bool) -> None:
    """Prefill and pin what the requests in FILE begin with.

    FILE holds the JSON of requests as clients send them, of any protocol: one, a list of them, or one a line; or it
    is a recorded trace, whose calls that cannot be used are left out and named.
    """
    found = read_prefixes(file, limits=Limits(), whole=whole)
    console = plain_console(stderr=True)
    for line in found.left_out:
        console.print(line)
    answers: list[object] = []
    anchors: list[Anchor] = []
    for prefix in found.prefixes:
        answers.append(client.post("/cache/anchors", {**prefix.anchor, "ttl": _ttl(ttl)}))
        anchor = _answered(WarmedAnchor, answers[-1], client)
        console.print(f"  {prefix.origin}: {anchor.prefilled_tokens} of {anchor.tokens} tokens prefilled")
        anchors.append(anchor)
    _show(answers, as_json=as_json, table=_anchor_table(anchors))


@cache_group.command("ls", cls=SuggestingCommand)
@click.argument("namespace", required=False)
@click.option(
    "--cache-disk", metavar="DIR", type=click.Path(path_type=Path), help=f"{DISK_HELP} No server needs to be running."
)
@_speaking
def ls(*, client: Client, as_json: bool, cache_disk: Path | None, namespace: str | None) -> None:
    """List what a running server has pinned, or what a disk tier holds.

    With --cache-disk the namespaces are listed, or the records of NAMESPACE: a digest, or its beginning.
    """
    if cache_disk is not None:
        for given, what in (("url", "is a server"), ("model", "is a server's")):
            if click.get_current_context().get_parameter_source(given) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{given} {what} and --cache-disk a directory; give one of them")
        list_disk(cache_disk.expanduser(), namespace=namespace, as_json=as_json)
        return
    if namespace is not None:
        raise click.UsageError("NAMESPACE needs --cache-disk")
    answer = client.get("/cache/anchors")
    listed = _answered(AnchorList, answer, client)
    _show(answer, as_json=as_json, table=_anchor_table(listed.data))
    if not as_json:
        parked = f", {format_size(listed.parked_pinned_bytes)} for other models" if listed.parked_pinned_bytes else ""
        click.echo(f"{format_size(listed.pinned_bytes)} of {format_size(listed.pin_budget_bytes)} pinned{parked}")


@cache_group.command("pin", cls=SuggestingCommand)
@click.argument("id")
@click.option("--name", default=None, help="Another name for it.")
@click.option("--ttl", default=None, help=TTL_HELP)
@_speaking
def pin(*, client: Client, id: str, name: str | None, ttl: str | None, as_json: bool) -> None:
    """Make a pin stay for good or for another time, or name it.

    ID is that of 'anchorline cache ls'. Without --ttl an explicit pin keeps the time it has; any other kind stays
    until it is unpinned.
    """
    change: dict[str, Any] = {}
    if name is not None:
        change["name"] = name
    if ttl is not None:
        change["ttl"] = _ttl(ttl)
    answer = client.call("PATCH", f"/cache/anchors/{quote(id, safe='')}", change)
    _show(answer, as_json=as_json, table=_anchor_table([_answered(Anchor, answer, client)]))


@cache_group.command("unpin", cls=SuggestingCommand)
@click.argument("id")
@_speaking
def unpin(*, client: Client, id: str, as_json: bool) -> None:
    """Let go of a pin; its rows stay until their room is needed.

    ID is that of 'anchorline cache ls'.
    """
    answer = client.call("DELETE", f"/cache/anchors/{quote(id, safe='')}")
    _show(answer, as_json=as_json, table=_figures(_answered(dict[str, Any], answer, client)))


@cache_group.command("clear", cls=SuggestingCommand)
@click.option("--pins", is_flag=True, help="Also what is pinned.")
@_speaking
def clear(*, client: Client, pins: bool, as_json: bool) -> None:
    """Forget everything that is not pinned or in use."""
    answer = client.post("/cache/clear", {"pins": pins})
    _show(answer, as_json=as_json, table=_figures(_answered(dict[str, Any], answer, client)))


@cache_group.command("stats", cls=SuggestingCommand)
@_speaking
def stats(*, client: Client, as_json: bool) -> None:
    """Show the figures of the cache."""
    answer = client.get("/cache")
    _show(answer, as_json=as_json, table=_figures(_answered(dict[str, Any], answer, client)))


def _ttl(text: str) -> str | float | None:
    """As the server takes it, which also checks it."""
    if text == FOREVER:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return text
    return seconds if math.isfinite(seconds) else text


def _show(answer: object, *, as_json: bool, table: Table) -> None:
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        show_table(table)


def _anchor_table(anchors: Iterable[Anchor]) -> Table:
    """One row per anchor; the id is never cut, as other commands want it."""
    table = Table()
    table.add_column("id", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for heading in ("tokens", "size", "expires in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tools", no_wrap=True)
    for anchor in anchors:
        expires_seconds = anchor.expires_in_seconds
        table.add_row(
            printable(anchor.id),
            _name(anchor),
            printable(anchor.kind),
            str(anchor.tokens),
            format_size(anchor.bytes),
            "-" if expires_seconds is None else f"{expires_seconds:.0f} s",
            printable(anchor.tool_fingerprint or "-")[:12],
        )
    return table


def _name(pin: Pin) -> str:
    return printable(pin.name or "-")


def _figures(answer: Mapping[str, Any]) -> Table:
    """One row per figure; those of a group stand behind its name."""
    table = Table(show_header=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right")
    for name, value in _rows(answer):
        size = name.endswith("_bytes") and isinstance(value, int)
        table.add_row(printable(name.replace("_", " ")), format_size(value) if size else _word(value))
    return table


def _rows(answer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in answer.items():
        if isinstance(value, Mapping):
            yield from ((inner if name == "counters" else f"{name} {inner}", of) for inner, of in _rows(value))
        elif name != "object":
            yield name, value


def _word(value: object) -> str:
    if value is None:
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else printable(str(value))
