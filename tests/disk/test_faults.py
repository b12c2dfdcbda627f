"""What a file that is not as it was written costs: the record, and one count under the name of what is wrong."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from anchorline.disk.format import CHECKSUM_BYTES, FIXED_BYTES, MAX_HEADER_BYTES, checksum, header_bytes
from anchorline.disk.namespace import Namespace
from anchorline.disk.reader import READ_THREADS
from tests.support.disk import NAMESPACE, Disk, UnsyncedFiles, conversation, file_of, filled, payload_of
from tests.support.faulty_files import FaultyFiles, Trouble

OTHER = Namespace({**NAMESPACE.facts, "K type": "q8_0"})
HEAD, TURN, *_ = RECORDS = conversation()
PAYLOAD = header_bytes(TURN)
"""Where the payload of the damaged record begins."""


def patched(path: Path, offset: int, data: bytes) -> None:
    """Other bytes at ``offset`` of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def rewritten(path: Path, offset: int, data: bytes) -> None:
    """Other bytes in a header whose checksum is right all the same, as another program would write it."""
    patched(path, offset, data)
    body = path.read_bytes()[: PAYLOAD - CHECKSUM_BYTES]
    patched(path, PAYLOAD - CHECKSUM_BYTES, checksum(body))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def linked(path: Path) -> None:
    """A link to a file that holds just what it should."""
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def piped(path: Path) -> None:
    """A pipe: opening it must not wait for somebody who writes."""
    path.unlink()
    os.mkfifo(path)


def renamed(path: Path) -> None:
    """No record by its name; whatever it is, it is somebody else's."""
    path.rename(path.with_name("notes.txt"))


def swapped(path: Path) -> None:
    """The file of another record under this one's name."""
    shutil.copy(file_of(path.parents[2], HEAD), path)


def from_elsewhere(path: Path) -> None:
    """The same record, of another namespace."""
    filled(path.parents[2], RECORDS, namespace=OTHER)
    shutil.copy(file_of(path.parents[2], TURN, OTHER), path)


def claims_a_span_beyond_the_limit(path: Path) -> None:
    """A header that its file has room for, as that has holes, and memory perhaps not."""
    tokens = MAX_HEADER_BYTES // 4
    size = FIXED_BYTES + 4 * tokens + CHECKSUM_BYTES
    patched(path, 16, struct.pack("<I", size))
    patched(path, 32, struct.pack("<Q", TURN.start + tokens))
    os.truncate(path, size + TURN.payload_bytes)


HEADER_DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    ("short", emptied),
    ("short", lambda path: os.truncate(path, 100)),
    ("short", lambda path: os.truncate(path, PAYLOAD - 1)),
    ("short", lambda path: os.truncate(path, PAYLOAD + TURN.payload_bytes - 1)),
    ("sizes", lambda path: os.truncate(path, PAYLOAD + TURN.payload_bytes + 1)),
    ("sizes", lambda path: rewritten(path, 16, struct.pack("<I", PAYLOAD + 4))),
    ("sizes", lambda path: rewritten(path, 32, struct.pack("<Q", 1 << 40))),
    ("magic", lambda path: patched(path, 0, b"GGUF")),
    ("version", lambda path: patched(path, 8, b"\2")),
    ("codec", lambda path: rewritten(path, 10, b"\1")),
    ("sizes", lambda path: rewritten(path, 11, b"\3")),
    ("sizes", claims_a_span_beyond_the_limit),
    ("fields", lambda path: rewritten(path, 14, b"\1")),
    ("fields", lambda path: rewritten(path, 12, b"\x80")),
    ("header_checksum", lambda path: patched(path, 13, b"\1")),
    ("header_checksum", lambda path: patched(path, PAYLOAD - 1, b"!!")),
    ("key", lambda path: rewritten(path, 160, struct.pack("<i", 7))),
    ("key", swapped),
    ("namespace", from_elsewhere),
    ("foreign", linked),
    ("foreign", piped),
    ("foreign", renamed),
]


@pytest.mark.parametrize(("kind", "damage"), HEADER_DAMAGE)
def test_a_damaged_header_is_found_by_the_index(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    filled(tmp_path, RECORDS)
    damage(file_of(tmp_path, TURN))
    with Disk(tmp_path) as disk:
        assert [record.key for record in disk.index()] == [HEAD.key]
        # What came after the record lacks its parent now.
        assert disk.faults == {kind: 1, "parent": len(RECORDS) - 2}


@pytest.mark.parametrize(
    "offset",
    [PAYLOAD, PAYLOAD + TURN.payload_bytes // 2, PAYLOAD + TURN.payload_bytes - 1],
    ids=["first", "middle", "last"],
)
def test_a_damaged_payload_is_found_when_it_is_read(tmp_path: Path, offset: int) -> None:
    filled(tmp_path, RECORDS)
    path = file_of(tmp_path, TURN)
    patched(path, offset, bytes([path.read_bytes()[offset] ^ 1]))
    with Disk(tmp_path) as disk:
        assert len(disk.index()) == len(RECORDS)
        assert disk.read(TURN) is None
        assert disk.faults == {"payload_checksum": 1}
        disk.settle()
        assert not path.exists()
        assert disk.write(TURN)
        assert disk.read(TURN) == payload_of(TURN)


def test_a_record_that_changed_since_the_index_is_not_read(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    with Disk(tmp_path) as disk:
        disk.index()
        swapped(file_of(tmp_path, TURN))
        assert disk.read(TURN) is None
        file_of(tmp_path, HEAD).unlink()
        assert disk.read(HEAD) is None
        assert disk.faults == {"key": 1, "missing": 1}


def test_a_directory_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    filled(tier, RECORDS)
    with Disk(tier) as disk:
        disk.index()
        shutil.rmtree(tier)
        assert disk.read(HEAD) is None
        assert disk.faults == {"missing": 1}
        disk.settle()
        assert disk.write(HEAD)
        assert set(disk.lost) == {record.key for record in RECORDS[1:]}
        assert disk.read(HEAD) == payload_of(HEAD)
    with Disk(tier) as disk:
        assert [record.key for record in disk.index()] == [HEAD.key]


def test_a_directory_that_another_server_made_anew_is_its_own(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with Disk(tier) as disk:
        disk.index()
        shutil.rmtree(tier)
        with Disk(tier) as other:
            other.index()
            assert not disk.write(HEAD)
            assert disk.faults == {"permission": 1}
            assert other.write(HEAD)


@pytest.mark.parametrize("is_anew", [False, True], ids=["made anew", "taken over"])
def test_what_another_server_has_is_neither_deleted_nor_touched(tmp_path: Path, is_anew: bool) -> None:
    tier = tmp_path / "tier"
    filled(tier, RECORDS)
    now = [1e9]
    with Disk(tier, clock=lambda: now[0]) as disk:
        disk.index()
        if is_anew:
            shutil.rmtree(tier)
        else:
            (tier / "lock").unlink()
        with Disk(tier) as other:
            other.index()
            assert all(other.write(record) for record in RECORDS)
            used = {path: path.stat().st_mtime for path in tier.rglob("*.segment")}
            assert len(used) == len(RECORDS)
            disk.store.discard([record.key for record in RECORDS[1:]])
            now[0] += 1e9
            disk.store.note_use([HEAD.key])
            disk.settle()
            disk.settle()
            assert {path: path.stat().st_mtime for path in tier.rglob("*.segment")} == used
            assert disk.faults == {"permission": len(RECORDS)}


def linked_shard(tier: Path) -> Path:
    return file_of(tier, HEAD).parent


def linked_namespace(tier: Path) -> Path:
    return tier / NAMESPACE.directory


@pytest.mark.parametrize("linked_path", [linked_shard, linked_namespace])
def test_what_a_linked_directory_leads_to_is_left_alone(tmp_path: Path, linked_path: Callable[[Path], Path]) -> None:
    tier, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    filled(tier, RECORDS)
    link = linked_path(tier)
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    file_of(tier, HEAD).with_name(f"{HEAD.key.hex()}.segment.tmp").write_bytes(b"theirs")
    before = sorted(elsewhere.rglob("*"))
    with Disk(tier) as disk:
        assert HEAD.key not in {record.key for record in disk.index()}
        assert not disk.write(HEAD)
        assert disk.read(HEAD) is None
        disk.store.discard([HEAD.key])
        disk.settle()
        assert set(disk.faults) <= {"foreign", "parent"}
        assert disk.faults["foreign"] >= 4
    assert sorted(elsewhere.rglob("*")) == before


def test_only_what_this_program_leaves_half_written_is_removed(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    theirs = file_of(tmp_path, HEAD).with_name("notes.tmp")
    theirs.write_bytes(b"theirs")
    with Disk(tmp_path) as disk:
        disk.index()
        assert disk.faults == {"foreign": 1}
    assert theirs.exists()


def test_what_was_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    files = FaultyFiles(Trouble.DEATH)
    with Disk(tmp_path, files=files) as disk:
        disk.index()
        files.strike_next("write")
        assert not disk.write(HEAD)
    assert [path.suffix for path in (tmp_path / NAMESPACE.directory).glob("*/*")] == [".tmp"]
    with Disk(tmp_path) as disk:
        assert disk.index() == []
        assert disk.faults == {}
        assert list((tmp_path / NAMESPACE.directory).glob("*/*")) == []


def test_a_description_that_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    (tmp_path / NAMESPACE.directory / "namespace.json").write_text("[" * 60000)
    with Disk(tmp_path) as disk:
        assert len(disk.index()) == len(RECORDS)
        assert disk.faults == {}


class FailingFiles(UnsyncedFiles):
    """Raises what no file operation does."""

    failing = False

    def open(self, path: Path) -> int:
        if self.failing:
            raise MemoryError
        return super().open(path)


def test_an_error_that_nobody_thought_of_costs_its_job_alone(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    files = FailingFiles()
    with Disk(tmp_path, files=files) as disk:
        files.failing = True
        assert disk.index() == []
        for _ in range(2 * READ_THREADS):
            assert disk.read(HEAD) is None
        files.failing = False
        disk.settle()
        assert disk.read(HEAD) == payload_of(HEAD)
        assert disk.faults == {"unexpected": 1 + 2 * READ_THREADS}
