"""``anchorline cache`` on the files of a disk tier, without a server."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anchorline.cli.main import cli
from anchorline.disk.format import header_bytes
from anchorline.disk.namespace import Namespace
from tests.support.disk import NAMESPACE, Disk, conversation, file_of, filled, payload_of, rows_record, state_record

OTHER = Namespace({**NAMESPACE.facts, "K type": "q8_0"})
HEAD, TURN, LATE, FORK, STATE = RECORDS = conversation()
DIGEST = NAMESPACE.directory


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["cache", *map(str, arguments)])


def told(*arguments: str | Path) -> str:
    """What a command that succeeds prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A directory with one conversation in it."""
    filled(tmp_path / "tier", RECORDS)
    return tmp_path / "tier"


def test_namespaces_and_their_records_are_listed(tier: Path) -> None:
    filled(tier, [HEAD], namespace=OTHER)
    rows = {row["namespace"]: row for row in json.loads(told("ls", "--cache-disk", tier, "--json"))}
    assert rows.keys() == {DIGEST, OTHER.directory}
    assert rows[DIGEST]["records"] == len(RECORDS)
    assert rows[DIGEST]["size_bytes"] == sum(header_bytes(record) + record.payload_bytes for record in RECORDS)
    records = json.loads(told("ls", "--cache-disk", tier, DIGEST[:8], "--json"))
    assert next(row["key"] for row in records) == HEAD.key.hex()
    (late,) = [row for row in records if row["key"] == LATE.key.hex()]
    assert (late["kind"], late["start"], late["end"], late["shared"]) == ("rows", LATE.start, LATE.end, False)
    assert HEAD.key.hex()[:12] in told("ls", "--cache-disk", tier, DIGEST[:8])


def test_the_model_of_a_namespace_is_named_as_it_was_served_last(tier: Path) -> None:
    def listed() -> dict[str, str | None]:
        return {row["namespace"]: row["model"] for row in json.loads(told("ls", "--cache-disk", tier, "--json"))}

    assert listed() == {DIGEST: None}
    for name in ("small", "small-again"):
        filled(tier, [], namespace=replace(NAMESPACE, label=name))
        assert listed() == {DIGEST: name}
        assert f" {name} " in told("ls", "--cache-disk", tier)


def test_a_whole_tier_is_verified(tier: Path) -> None:
    assert told("verify", "--cache-disk", tier) == f"{len(RECORDS)} files, all of them whole\n"


def test_damage_is_told_with_the_file_that_it_is_in(tier: Path) -> None:
    path = file_of(tier, LATE)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!" if path.read_bytes()[-1:] != b"!" else b"?")
    os.truncate(file_of(tier, FORK), 10)
    result = run("verify", "--cache-disk", tier)
    assert result.exit_code == 1
    assert f"payload_checksum {path}" in result.stdout
    assert f"short {file_of(tier, FORK)}" in result.stdout
    assert f"{len(RECORDS)} files, 1 payload checksum, 1 short" in result.stdout


def test_a_record_in_the_wrong_directory_is_none(tier: Path) -> None:
    path = file_of(tier, LATE)
    wrong = path.parent.with_name("00" if path.parent.name != "00" else "01") / path.name
    wrong.parent.mkdir(exist_ok=True)
    path.rename(wrong)
    assert LATE.key.hex() not in told("ls", "--cache-disk", tier, DIGEST, "--json")
    assert f"key {wrong}" in run("verify", "--cache-disk", tier).stdout
    told("gc", "--cache-disk", tier)
    assert not wrong.exists()
    told("verify", "--cache-disk", tier)


def test_collecting_goes_on_where_something_cannot_be_removed(tier: Path) -> None:
    path = file_of(tier, FORK)
    path.unlink()
    path.mkdir()
    os.truncate(file_of(tier, LATE), 10)
    result = run("gc", "--cache-disk", tier, "--cache-disk-size", "0")
    assert result.exit_code == 1
    assert f"foreign {path}" in result.stdout
    assert f"{len(RECORDS) - 1} files removed" in result.stdout


def test_verifying_leaves_alone_what_a_server_is_writing(tier: Path) -> None:
    writing = file_of(tier, HEAD).with_suffix(".segment.tmp")
    writing.write_bytes(b"half")
    told("verify", "--cache-disk", tier)
    told("ls", "--cache-disk", tier)
    assert writing.exists()
    told("gc", "--cache-disk", tier)
    assert not writing.exists()


def test_what_cannot_be_used_is_collected_and_nothing_else(tier: Path) -> None:
    os.truncate(file_of(tier, TURN), 10)
    assert told("gc", "--cache-disk", tier).startswith(f"{len(RECORDS) - 1} files removed")
    with Disk(tier) as disk:
        assert [record.key for record in disk.index()] == [HEAD.key]
        assert disk.faults == {}


def test_a_size_is_kept_by_collecting_what_was_used_longest_ago_of_any_namespace(tier: Path) -> None:
    filled(tier, [HEAD], namespace=OTHER)
    for record in RECORDS:
        os.utime(file_of(tier, record), (1e9, 1e9))
    told("gc", "--cache-disk", tier, "--cache-disk-size", str(header_bytes(HEAD) + HEAD.payload_bytes))
    assert sorted(path.name for path in tier.iterdir()) == sorted([OTHER.directory, "lock"])


def test_a_directory_with_a_server_on_it_is_not_collected(tier: Path) -> None:
    with Disk(tier):
        result = run("gc", "--cache-disk", tier)
    assert result.exit_code == 2
    assert f"in use by another server (process {os.getpid()})" in result.output


def test_what_was_exported_can_be_imported_elsewhere(tier: Path, tmp_path: Path) -> None:
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    assert told("import", "--cache-disk", tmp_path / "new", tmp_path / "file").startswith(f"{len(RECORDS)} of")
    assert told("import", "--cache-disk", tmp_path / "new", tmp_path / "file").startswith("0 of")
    with Disk(tmp_path / "new") as disk:
        found = disk.index()
        assert {record.key: disk.read(record) for record in found} == {
            record.key: payload_of(record) for record in RECORDS
        }


def test_importing_repairs_what_is_damaged(tier: Path, tmp_path: Path) -> None:
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    with file_of(tier, LATE).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([payload_of(LATE)[-1] ^ 1]))
    assert told("import", "--cache-disk", tier, tmp_path / "file").startswith(f"1 of {len(RECORDS)}")
    told("verify", "--cache-disk", tier)


def test_a_chosen_record_takes_along_what_lies_before_it_and_no_more(tier: Path, tmp_path: Path) -> None:
    at_head = state_record(HEAD)
    (other,) = others = [rows_record([9], payload_bytes=10)]
    filled(tier, [at_head, *others])
    told("export", "--cache-disk", tier, "--output", tmp_path / "file", LATE.key.hex()[:16])
    told("import", "--cache-disk", tmp_path / "new", tmp_path / "file")
    with Disk(tmp_path / "new") as disk:
        # The state at the end of the turn is along the way; that of another turn and the other head are not.
        assert {record.key for record in disk.index()} == {r.key for r in (HEAD, at_head, TURN, LATE, STATE)}
    assert other.key not in {record.key for record in RECORDS}


def test_another_namespace_is_refused_and_what_differs_is_named(tier: Path, tmp_path: Path) -> None:
    filled(tmp_path / "new", [HEAD], namespace=OTHER)
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    refused = run("import", "--cache-disk", tmp_path / "new", tmp_path / "file")
    assert refused.exit_code == 2
    assert 'K type is "f16" in the file and "q8_0" there' in refused.output
    assert not (tmp_path / "new" / DIGEST).exists()
    told("import", "--cache-disk", tmp_path / "new", tmp_path / "file", "--new-namespace")
    assert (tmp_path / "new" / DIGEST).exists()


@pytest.mark.parametrize(("cut", "kind"), [(8, "short"), (100, "short"), (-1, "short")])
def test_an_export_that_is_cut_off_is_refused(tier: Path, tmp_path: Path, cut: int, kind: str) -> None:
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    os.truncate(tmp_path / "file", cut % (tmp_path / "file").stat().st_size)
    refused = run("import", "--cache-disk", tmp_path / "new", tmp_path / "file")
    assert refused.exit_code == 1
    assert f"{kind} {tmp_path / 'file'}" in refused.output
    assert not (tmp_path / "new").exists(), "nothing was taken over"


def test_an_export_that_something_follows_is_refused(tier: Path, tmp_path: Path) -> None:
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    end = (tmp_path / "file").stat().st_size
    with (tmp_path / "file").open("ab") as file:
        file.write(b"more")
    refused = run("import", "--cache-disk", tmp_path / "new", tmp_path / "file")
    assert refused.exit_code == 1
    assert f"4 bytes follow the last record, which ends at byte {end}" in refused.output.replace("\n", " ")
    assert not (tmp_path / "new").exists(), "nothing was taken over"


def test_an_export_that_is_changed_anywhere_is_refused(tier: Path, tmp_path: Path) -> None:
    told("export", "--cache-disk", tier, "--output", tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        (tmp_path / "file").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert run("import", "--cache-disk", tmp_path / f"{at}", tmp_path / "file").exit_code in (1, 2), at


def test_wishes_that_cannot_be_granted_are_refused(tier: Path, tmp_path: Path) -> None:
    filled(tier, [HEAD], namespace=OTHER)
    (tmp_path / "file").write_text("")
    for arguments, why in (
        (("ls", "--cache-disk", tmp_path / "none"), "there is no directory"),
        (("ls", "--cache-disk", tier, "--url", "http://localhost"), "give one of them"),
        (("ls", DIGEST), "NAMESPACE needs --cache-disk"),
        (("export", "--cache-disk", tier, "--output", tmp_path / "out"), "--namespace: there are 2"),
        (("export", "--cache-disk", tier, "--output", tmp_path / "file"), "is there already"),
        (("export", "--cache-disk", tier, "-o", tmp_path / "out", "--namespace", DIGEST, "zz"), "0 keys begin"),
        (("export", "--cache-disk", tier, "-o", tmp_path / "out", "--namespace", DIGEST, ""), "an empty text names"),
        (("import", "--cache-disk", tier, tmp_path / "none"), "missing"),
    ):
        refused = run(*arguments)
        assert refused.exit_code in (1, 2)
        assert why in refused.output.replace("\n", " ")
