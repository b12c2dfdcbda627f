"""Several models on the command line: which there are, their names, and what does not go with them."""

from __future__ import annotations

import errno
import logging
import os
import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from anchorline.bench.process import start_anchorline
from anchorline.cli.models import name_of, named_models
from anchorline.config import ModelConfig
from anchorline.errors import ConfigError
from tests.cli.test_options import parse, run


def write_model(path: Path, *, tensors: int = 1) -> Path:
    """A file that begins as a model does."""
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensors, 0))
    return path


def names(*models: str, directory: Path | None = None) -> list[str]:
    return [model.name for model in named_models(models, str(directory) if directory else None, ModelConfig())]


def test_names_are_those_under_which_models_are_listed() -> None:
    assert [name_of(model) for model in ("test:llama", "smollm2", "~/models/Qwen3-4B.Q8_0.gguf")] == [
        "test:llama",
        "smollm2",
        "Qwen3-4B.Q8_0",
    ]


def test_models_come_first_and_then_those_of_the_directory(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_model(tmp_path / f"{name}.gguf")
    assert names("test:llama", "smollm2", directory=tmp_path) == ["test:llama", "smollm2", "a", "b"]
    assert names(str(tmp_path / "b.gguf"), directory=tmp_path) == ["b", "a"], "one file is one model"
    found = named_models([str(tmp_path / "b.gguf")], str(tmp_path), ModelConfig())
    assert [(model.name, model.is_required) for model in found] == [("b", True), ("a", False)]


def test_all_are_loaded_as_the_flags_say(tmp_path: Path) -> None:
    common = ModelConfig(mmap=False)
    assert [named.config for named in named_models(["x.gguf", "test:llama"], None, common)] == [
        ModelConfig(model="x.gguf", mmap=False),
        ModelConfig(model="test:llama", mmap=False),
    ]


def test_what_is_no_model_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path / "good.gguf")
    write_model(tmp_path / "split-00001-of-00002.gguf", tensors=0)
    write_model(tmp_path / "split-00002-of-00002.gguf")
    left_out = {
        write_model(tmp_path / "mmproj-good.gguf"): "by its name it is the image projector of a model",
        write_model(tmp_path / "vocab.gguf", tensors=0): "it holds a vocabulary and no weights",
        tmp_path / "text.gguf": "it is not a GGUF file",
        tmp_path / "folder.gguf": "it is no file",
    }
    (tmp_path / "text.gguf").write_text("not a model, but long enough to be one")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with caplog.at_level(logging.WARNING, "anchorline.cli"):
        assert names(directory=tmp_path) == ["good", "split-00001-of-00002"]
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"--models: {path} is left out: {why}" for path, why in left_out.items()
    )


@pytest.mark.parametrize("name", [b"no-utf-8-\xff.gguf", b"\x1b]0;title\x07.gguf", b"two\nlines.gguf"])
def test_a_file_whose_name_cannot_be_shown_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    write_model(tmp_path / "good.gguf")
    write_model(tmp_path / os.fsdecode(name))
    assert names(directory=tmp_path) == ["good"]
    (line,) = caplog.messages
    assert line.isprintable()
    assert line.endswith("its name has characters that cannot be shown")


def test_a_file_that_the_system_does_not_look_at_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(tmp_path / "good.gguf")
    (tmp_path / "far.gguf").symlink_to("x" * 1000)
    assert names(directory=tmp_path) == ["good"]
    assert caplog.messages == [
        f"--models: {tmp_path / 'far.gguf'} is left out: it cannot be read: {os.strerror(errno.ENAMETOOLONG)}"
    ]


def test_two_of_one_name_are_refused_with_both(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    one, two = write_model(tmp_path / "x" / "m.gguf"), write_model(tmp_path / "y" / "m.gguf")
    with pytest.raises(ConfigError) as refused:
        names(str(one), directory=tmp_path / "y")
    assert str(refused.value) == f"two models are called m: {one} and {two}; rename a file"


@pytest.mark.parametrize(("folder", "why"), [("none", "cannot be read: No such file"), ("empty", "no model in")])
def test_a_directory_without_models_is_refused(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"--models: .*{why}"):
        names(directory=tmp_path / folder)


def test_models_are_arguments() -> None:
    assert parse("a.gguf", "b.gguf")["models"] == ("a.gguf", "b.gguf")
    assert parse("--model", "a.gguf")["models"] == ("a.gguf",)
    assert parse("-m", "a.gguf", "--model", "b.gguf")["models"] == ("a.gguf", "b.gguf")
    assert parse()["models"] == ("smollm2",)
    assert parse("--models", "models")["models"] == ()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("test:llama", "test:qwen35", "--alias", "mine"), "--alias"),
        (("test:llama", "test:qwen35", "--warm", "heads.json"), "--warm"),
        (("test:llama", "test:qwen35", "--lora", "adapter.gguf"), "--lora"),
        (("test:llama", "smollm2", "--script", "replies.json"), "--script needs a test:ARCH model, not smollm2"),
        (("test:llama", "--models-max", "2"), "--models-max"),
        (("--models", "/no/such/directory"), "--models"),
    ],
)
def test_what_does_not_go_with_several_is_named(arguments: tuple[str, ...], named: str) -> None:
    code, output = run("serve", *arguments)
    assert code != 0
    assert named in output


def test_a_signal_ends_a_server_that_loads_a_model_in_order() -> None:
    command = ["test:llama", "test:qwen35", "--threads", "1", "--ctx", "2048", "--shutdown-timeout", "0"]
    with start_anchorline(command) as server, ThreadPoolExecutor(1) as thread:
        url = server.wait_until_listening()
        body = {"model": "test:qwen35", "content": "x"}
        asking = thread.submit(lambda: httpx.post(f"{url}/tokenize", json=body, timeout=60).status_code)
        while httpx.get(f"{url}/health").json()["models"]["test:qwen35"] == "unloaded":
            pass
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
        assert asking.result() in (200, 503), "it may just have been loaded"
    assert "Traceback" not in "\n".join(server.lines)
