"""``anchorline cache`` on the files of a disk tier: look at them, check them, make room, carry records elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_table
from anchorline.cli.values import SizeType, format_size
from anchorline.disk.directory import DiskDirectory
from anchorline.disk.export import Export, chain_of, open_export, write_export
from anchorline.disk.faults import DiskFault
from anchorline.disk.files import Files
from anchorline.disk.namespace import Namespace
from anchorline.disk.offline import NamespaceFiles, collect, locked, look, verify
from anchorline.disk.record import SegmentRecord
from anchorline.disk.record_files import RecordFiles
from anchorline.errors import ConfigError
from anchorline.refusal import Refusal
from anchorline.terminal import printable

SHOWN_DIGITS = 12
"""Of a key or of the digest of a namespace; any beginning that only one has names it."""

DISK_HELP = "The directory of the disk tier, as 'serve' has it."

_files = Files()


def _on_disk(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the directory; what cannot be read or written is one line."""

    @click.option("--cache-disk", required=True, metavar="DIR", type=click.Path(path_type=Path), help=DISK_HELP)
    @wraps(command)
    def on_disk(*, cache_disk: Path, **options: Any) -> None:
        try:
            command(path=cache_disk.expanduser(), **options)
        except DiskFault as fault:
            raise Refusal(str(fault)) from fault

    return on_disk


def list_disk(path: Path, *, namespace: str | None, as_json: bool) -> None:
    """Show the namespaces in a directory, or the records of one of them. Raises ConfigError."""
    namespaces = look(path, _files)
    if namespace is None:
        rows = [_namespace_row(each) for each in namespaces]
    else:
        chosen = _chosen(namespaces, namespace)
        rows = [_record_row(record, chosen.last_use_seconds(record)) for record in chosen.found.records]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        show_table(_table(rows))


@click.command("verify", cls=SuggestingCommand)
@_on_disk
def verify_command(*, path: Path) -> None:
    """Read every file of a disk tier and check it, to the last byte.

    Changes nothing, and may run beside a server. Ends with exit code 1 when a file cannot be used.
    """
    verified = verify(look(path, _files))
    _show_faults(verified.faults)
    kinds = Counter(str(fault.kind) for fault in verified.faults)
    click.echo(f"{verified.files} files, {_listed(kinds) or 'all of them whole'}")
    if verified.faults:
        raise click.exceptions.Exit(1)


@click.command("gc", cls=SuggestingCommand)
@click.option(
    "--cache-disk-size",
    type=SizeType(minimum_bytes=0, maximum_bytes=1 << 50),
    metavar="SIZE",
    help="Also remove what was used longest ago, until all files take no more than this.",
)
@_on_disk
def gc_command(*, path: Path, cache_disk_size: int | None) -> None:
    """Remove files that cannot be used, of all namespaces.

    Those are ones with a damaged header, those of other versions of the format, and records whose parent is gone; no
    payload is read for it. A running server does that by itself when it needs the room. Ends with exit code 1 when a
    file cannot be removed.
    """
    with locked(path, _files) as directory:
        collected = collect(directory, _files, size_bytes=cache_disk_size)
    _show_faults(collected.faults)
    click.echo(f"{collected.files} files removed, {format_size(collected.size_bytes)}")
    if collected.faults:
        raise click.exceptions.Exit(1)


@click.command("export", cls=SuggestingCommand)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--output", "-o", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The file to write."
)
@click.option("--namespace", metavar="DIGEST", help="Of which namespace; needed where there are several.")
@_on_disk
def export_command(*, path: Path, keys: tuple[str, ...], output: Path, namespace: str | None) -> None:
    """Write records, each with all before it, into one file.

    KEY is that of 'anchorline cache ls --cache-disk DIR NAMESPACE', or its beginning; without one all records of the
    namespace are written. The file holds the ids of what was said to the model.
    """
    if output.exists():
        raise ConfigError(f"--output: {output} is there already")
    chosen = _chosen(look(path, _files), namespace)
    if chosen.described is None:
        raise ConfigError(
            f"nothing says what namespace {chosen.digest[:SHOWN_DIGITS]} is; its namespace.json is damaged"
        )
    all_records = chosen.found.records
    records = chain_of(all_records, [_key(all_records, key) for key in keys]) if keys else all_records
    size_bytes = write_export(output, chosen.described, chosen.records, records, _files)
    click.echo(f"{len(records)} records, {format_size(size_bytes)}, written to {output}")


@click.command("import", cls=SuggestingCommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--new-namespace",
    is_flag=True,
    help="Also when no server has used the file's namespace in this directory; one may later.",
)
@_on_disk
def import_command(*, path: Path, file: Path, new_namespace: bool) -> None:
    """Take over the records in a FILE that 'anchorline cache export' wrote.

    They are of use to a server with the same model, build of llama.cpp and settings. Where only other servers have
    been the file is refused, and what differs is named.
    """
    with open_export(file, _files) as export:
        directory = DiskDirectory(path, _files)
        directory.open()
        try:
            if not new_namespace:
                _check_namespace(export.namespace, look(path, _files), file=file, path=path)
            taken, size_bytes = _take_over(export, directory)
        finally:
            directory.close()
    click.echo(f"{taken} of {export.records} records, {format_size(size_bytes)}, were not there yet")


def _take_over(export: Export, directory: DiskDirectory) -> tuple[int, int]:
    """Write the records that are not there yet; their number, and what they take."""
    namespace = export.namespace
    records = RecordFiles(directory.path / namespace.directory, namespace.digest, _files)
    directory.restore(namespace)
    taken = size_bytes = 0
    for record, payload in export.contents:
        if not _is_there(records, record):
            taken, size_bytes = taken + 1, size_bytes + records.write(record, payload)
    return taken, size_bytes


def _is_there(records: RecordFiles, record: SegmentRecord) -> bool:
    """Whether it is, and whole."""
    try:
        records.verify(records.path(record))
    except DiskFault:
        return False
    return True


def _check_namespace(ours: Namespace, there: Sequence[NamespaceFiles], *, file: Path, path: Path) -> None:
    """Raises ConfigError when ``there`` has other namespaces only, naming what the nearest differs in."""
    if not there or any(each.digest == ours.directory for each in there):
        return
    described = [each.described for each in there if each.described is not None]
    if described:
        nearest = min((ours.differences(other) for other in described), key=len)
        why = "; ".join(each.told(ours="in the file", theirs="there") for each in nearest)
    else:
        why = "nothing says what those are"
    raise ConfigError(
        f"{file} is of another namespace than those in {path}: {why}. "
        f"--new-namespace takes it over for a server that is still to come"
    )


def _chosen(namespaces: Sequence[NamespaceFiles], beginning: str | None) -> NamespaceFiles:
    """The namespace whose digest begins so, or the only one. Raises ConfigError."""
    if beginning is None and len(namespaces) != 1:
        raise ConfigError(
            f"--namespace: there are {len(namespaces)}; 'anchorline cache ls --cache-disk DIR' names them"
        )
    found = [each for each in namespaces if each.digest.startswith(beginning or "")]
    if len(found) != 1:
        raise ConfigError(f"--namespace: {len(found)} digests begin with {beginning!r}")
    return found[0]


def _key(records: Sequence[SegmentRecord], beginning: str) -> bytes:
    if not beginning:
        raise ConfigError("KEY: an empty text names no record; without a KEY all are written")
    found = [record.key for record in records if record.key.hex().startswith(beginning)]
    if len(found) != 1:
        raise ConfigError(f"KEY: {len(found)} keys begin with {beginning!r}")
    return found[0]


def _namespace_row(each: NamespaceFiles) -> dict[str, Any]:
    records = each.found.records
    last_use = max((entry.last_use_seconds for entry in each.found.entries.values()), default=None)
    return {
        "namespace": each.digest,
        "model": (each.described.label or None) if each.described is not None else None,
        "records": len(records),
        "tokens": sum(record.end - record.start for record in records),
        "size_bytes": each.used_bytes,
        "unusable": len(each.found.faults),
        "last_use": last_use,
    }


def _record_row(record: SegmentRecord, last_use_seconds: float) -> dict[str, Any]:
    return {
        "key": record.key.hex(),
        "after": None if record.parent is None else record.parent.hex(),
        "kind": record.kind.name.lower(),
        "start": record.start,
        "end": record.end,
        "size_bytes": record.payload_bytes,
        "shared": record.owner is None,
        "last_use": last_use_seconds,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    for name in rows[0] if rows else ():
        table.add_column(name.removesuffix("_bytes").replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    return table


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    match name:
        case "size_bytes":
            return format_size(value)
        case "last_use":
            return datetime.fromtimestamp(value).strftime("%Y-%m-%d %H:%M")
        case "key" | "after" | "namespace":
            return str(value)[:SHOWN_DIGITS]
        case "shared":
            return "yes" if value else "no"
    return printable(str(value))


def _show_faults(faults: Sequence[DiskFault]) -> None:
    for fault in faults:
        click.echo(printable(str(fault)))


def _listed(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))


DISK_COMMANDS = (verify_command, gc_command, export_command, import_command)
