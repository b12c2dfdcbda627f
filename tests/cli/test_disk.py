"""Where the disk tier lies when nobody says so, and whether the server may do without it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from anchorline.cli.disk import fill_in, open_store
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama.model import Model
from tests.support.runtimes import make_runtime

DEFAULTS: dict[str, Any] = {
    "models": ("smollm2",),
    "models_directory": None,
    "cache_disk": None,
    "cache_disk_bytes": None,
}


def filled(**given: Any) -> dict[str, Any]:
    values = {**DEFAULTS, **given}
    fill_in(values, {"XDG_CACHE_HOME": "/nowhere/caches"})
    return values


def test_it_lies_in_the_users_cache_directory() -> None:
    assert filled()["cache_disk"] == "/nowhere/caches/anchorline"
    values = dict(DEFAULTS)
    fill_in(values, {"XDG_CACHE_HOME": "not/absolute"})
    assert values["cache_disk"] == str(Path("~/.cache/anchorline").expanduser())


def test_it_is_off_when_told_so_and_with_models_made_for_tests() -> None:
    assert filled(cache_disk="off")["cache_disk"] is None
    assert filled(models=("test:llama", "test:qwen3"))["cache_disk"] is None
    assert filled(models=("test:llama",), cache_disk="tier")["cache_disk"] == "tier"


def test_it_is_on_where_any_model_is_a_file() -> None:
    assert filled(models=("test:llama", "a.gguf"))["cache_disk"]
    assert filled(models=("test:llama",), models_directory="models")["cache_disk"]


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="--cache-disk"):
        filled(cache_disk=" ")


def test_only_who_asked_for_a_directory_is_refused_without_it(
    test_llama_model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make_runtime(test_llama_model)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    def opened(*, required: bool) -> object:
        disk = DiskConfig(cache_disk=str(blocked / "tier"), cache_disk_required=required)
        return open_store(disk, ModelConfig(model="test:llama"), ContextConfig(), EngineConfig(), runtime)

    with pytest.raises(ConfigError, match="--cache-disk"):
        opened(required=True)
    with caplog.at_level(logging.WARNING):
        assert opened(required=False) is None
    assert "nothing outlives this server" in caplog.text
    runtime.close()
