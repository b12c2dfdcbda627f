"""Where the disk tier of ``serve`` lies, how large it may be, and opening it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorline import machine
from anchorline.cli.models import name_of
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig
from anchorline.disk.namespace import Namespace
from anchorline.disk.store import FileStore
from anchorline.errors import ConfigError
from anchorline.llama.identity import namespace_facts
from anchorline.llama.model import TEST_PREFIX
from anchorline.llama.runtime import LlamaRuntime

log = logging.getLogger("anchorline.cli")

OFF = "off"
QUEUE_SHARE = 4
"""One part in so many of --cache-ram may wait to be written: it cannot be evicted meanwhile."""


def default_directory(environment: Mapping[str, str]) -> Path:
    """``anchorline`` in the user's cache directory."""
    caches = environment.get("XDG_CACHE_HOME", "")
    return (Path(caches) if Path(caches).is_absolute() else Path("~/.cache").expanduser()) / "anchorline"


def fill_in(values: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Resolve the options of the disk tier that were not given; ``cache_disk`` is None afterwards where it is off."""
    given = values["cache_disk"]
    if given is None and not _only_tests(values):
        values["cache_disk"] = str(default_directory(environment))
    elif given == OFF:
        values["cache_disk"] = None
    elif given is not None and not given.strip():
        raise ConfigError("--cache-disk must not be empty; 'off' turns it off")
    if values["cache_disk_bytes"] is None:
        values["cache_disk_bytes"] = machine.default_disk_bytes(Path(values["cache_disk"] or "/"))
    values["cache_disk_required"] = given is not None


def _only_tests(values: Mapping[str, Any]) -> bool:
    """Whether all models are made for tests."""
    return values["models_directory"] is None and all(model.startswith(TEST_PREFIX) for model in values["models"])


def open_store(
    disk: DiskConfig, model: ModelConfig, context: ContextConfig, engine: EngineConfig, runtime: LlamaRuntime
) -> FileStore | None:
    """The store that ``disk`` asks for; None where it is off, or where nobody asked for one that cannot be had.

    Raises ConfigError for a directory that was asked for and cannot be used, ModelError for a file that cannot be read.
    """
    if disk.cache_disk is None:
        return None
    facts = namespace_facts(model, context, engine, layout=runtime.layout, context_tokens=runtime.limits.context_tokens)
    try:
        return FileStore(
            Path(disk.cache_disk).expanduser(),
            Namespace(facts, label=name_of(model.model)),
            size_bytes=disk.cache_disk_bytes,
            queue_bytes=min(disk.cache_disk_queue_bytes, engine.cache_ram_bytes // QUEUE_SHARE),
        )
    except ConfigError as error:
        if disk.cache_disk_required:
            raise
        log.warning("nothing outlives this server: %s", error)
        return None
