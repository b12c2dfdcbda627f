"""Files that are no files, and more threads than the machine can run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from anchorline.config import ModelConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama.context import MOST_THREADS_PER_CPU
from anchorline.llama.model import Model, load_model
from tests.support.runtimes import make_runtime

CPUS = os.cpu_count() or 1


def test_a_pipe_is_not_waited_for(test_llama_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"junkjunk")  # so that a reader would not wait for ever here
    try:
        with pytest.raises(ModelError, match="is a pipe or a device; name a GGUF model file") as caught:
            load_model(ModelConfig(model=str(path)))
        assert str(path) in str(caught.value)
        with pytest.raises(ModelError, match="is a pipe or a device; name a GGUF LoRA file"):
            load_model(ModelConfig(model=str(test_llama_path), lora=((str(path), 1.0),)))
    finally:
        os.close(writer)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero"])
def test_a_device_is_no_model(path: str) -> None:
    with pytest.raises(ModelError, match="is a pipe or a device"):
        load_model(ModelConfig(model=path))


def test_a_link_to_a_model_is_one(test_llama_path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(test_llama_path)
    load_model(ModelConfig(model=str(link))).close()


@pytest.mark.parametrize(("flag", "field"), [("--threads", "threads"), ("--threads-batch", "threads_batch")])
def test_far_more_threads_than_cpus_are_refused(test_llama_model: Model, flag: str, field: str) -> None:
    most = CPUS * MOST_THREADS_PER_CPU
    with pytest.raises(ConfigError, match=rf"{flag} must be at most {most}, .* machine's {CPUS} CPUs, not {most + 1}"):
        make_runtime(test_llama_model, context_tokens=256, **{field: most + 1})


@pytest.mark.parametrize(("threads", "warned"), [(CPUS, 0), (CPUS + 1, 1)])
def test_more_threads_than_cpus_are_warned_of_once(
    test_llama_model: Model, caplog: pytest.LogCaptureFixture, threads: int, warned: int
) -> None:
    with caplog.at_level(logging.WARNING, "anchorline.llama"):
        make_runtime(test_llama_model, context_tokens=256, threads=threads, threads_batch=threads).close()
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [f"--threads {threads} is more than the machine's {CPUS} CPUs; it will be slow"] * warned
