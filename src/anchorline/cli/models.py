"""Which models ``serve`` was told to serve, and their names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anchorline.config import ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama.model import DEFAULT_MODEL, TEST_PREFIX
from anchorline.llama.model_directory import models_in

log = logging.getLogger("anchorline.cli")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One of several models, as clients and as the system name it."""

    name: str
    config: ModelConfig
    is_required: bool
    """Whether it was named by itself, and not found in a directory."""


def named_models(models: Sequence[str], directory: str | None, common: ModelConfig) -> list[NamedModel]:
    """``models`` in their order, then those of ``directory``; all of them are loaded as ``common`` says.

    Says which files are left out. Raises ConfigError, also when two have one name.
    """
    named: dict[str, str] = {}
    for model in (*models, *_listed(directory)):
        before = named.setdefault(name := name_of(model), model)
        if before != model and not _same_file(before, model):
            raise ConfigError(f"two models are called {name}: {before} and {model}; rename a file")
    return [NamedModel(name, replace(common, model=model), model in models) for name, model in named.items()]


def name_of(model: str) -> str:
    """What a model is called when it is loaded: ``test:ARCH`` and the default by themselves, a file by its stem."""
    if model == DEFAULT_MODEL or model.startswith(TEST_PREFIX):
        return model
    return Path(model).stem


def _listed(directory: str | None) -> list[str]:
    if directory is None:
        return []
    path = Path(directory).expanduser()
    try:
        found = models_in(path)
    except OSError as error:
        raise ConfigError(f"--models: {directory} cannot be read: {error.strerror}") from error
    for line in found.left_out:
        log.warning("--models: %s", line)
    if not found.models:
        raise ConfigError(f"--models: there is no model in {directory}; a model is a file that ends in .gguf")
    return [str(model) for model in found.models]


def _same_file(one: str, other: str) -> bool:
    paths = [Path(model).expanduser() for model in (one, other)]
    return paths[0].resolve() == paths[1].resolve()
