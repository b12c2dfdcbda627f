"""The servers of ``anchorline replay``: what they are told, and the model that each loads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from anchorline.bench.models import bench_model
from anchorline.bench.peers import LlamaServer, PeerSettings
from anchorline.bench.process import start_anchorline
from anchorline.config import ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama import testmodel
from anchorline.llama.model import TEST_PREFIX, load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``replay`` was told of the servers that it starts."""

    model: str
    layers: int | None
    context_tokens: int
    flash_attention: str
    serve_args: tuple[str, ...]
    compare: bool
    compare_every: int
    peer: str | None
    peer_python: str
    peer_cache_ram_mib: int | None
    threads: int
    parallel: int
    max_tokens: int
    limit: int | None
    at_cuts: bool
    at_once: bool
    pace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """``served`` as ``anchorline serve`` takes it; ``peer`` is a file of the same weights, where there is one."""

    served: str
    peer: Path | None


def prepare_model(options: Options, folder: Path) -> ModelFiles:
    """What each server loads."""
    return model_files(
        options.model,
        folder=folder,
        layers=options.layers,
        context_tokens=options.context_tokens,
        for_peers=options.peer is not None,
    )


def model_files(model: str, *, folder: Path, layers: int | None, context_tokens: int, for_peers: bool) -> ModelFiles:
    """``model`` with ``layers`` of its layers, or all; a test model is written to a file for peers, or to be cut."""
    if not model.startswith(TEST_PREFIX):
        path = bench_model(model, folder=folder, layers=layers, context_tokens=context_tokens)
        return ModelFiles(served=str(path), peer=path)
    if context_tokens > testmodel.MAX_CONTEXT:
        raise ConfigError(f"--ctx must be at most {testmodel.MAX_CONTEXT} for a test model, not {context_tokens}")
    if not for_peers and layers is None:
        return ModelFiles(served=model, peer=None)
    path = folder / "test-model.gguf"
    loaded = load_model(ModelConfig(model=model, test_context=context_tokens))
    testmodel.save(loaded.handle, path)
    loaded.close()
    if layers is None:
        return ModelFiles(served=model, peer=path)
    path = bench_model(str(path), folder=folder, layers=layers, context_tokens=context_tokens)
    return ModelFiles(served=str(path), peer=path)


def serve_arguments(
    served: str, *, context_tokens: int, threads: int, parallel: int, flash_attention: str
) -> list[str]:
    """What ``anchorline serve`` is told: the model ``served``, and what its peers are told too."""
    sizes = ["--ctx", str(context_tokens), "--threads", str(threads), "--parallel", str(parallel)]
    arguments = [served, *sizes, "--flash-attn", flash_attention, "--log-level", "warning"]
    return [*arguments, "--test-context", str(context_tokens)] if served.startswith(TEST_PREFIX) else arguments


def start_server(stack: ExitStack, options: Options, model: ModelFiles, *more: str) -> str:
    """Start ``anchorline serve`` until ``stack`` is closed; returns its URL."""
    arguments = serve_arguments(
        model.served,
        context_tokens=options.context_tokens,
        threads=options.threads,
        parallel=options.parallel,
        flash_attention=options.flash_attention,
    )
    if options.compare:
        arguments.append("--exact")
    server = stack.enter_context(start_anchorline([*arguments, *options.serve_args, *more]))
    return server.wait_until_listening()


def start_peer(stack: ExitStack, options: Options, model: ModelFiles) -> LlamaServer:
    """Start the peer until ``stack`` is closed."""
    assert model.peer is not None, "a file is prepared whenever there is a peer"
    settings = PeerSettings(
        model=model.peer,
        context_tokens=options.context_tokens,
        parallel=options.parallel,
        threads=options.threads,
        flash_attention=options.flash_attention,
        cache_ram_mib=options.peer_cache_ram_mib,
    )
    return stack.enter_context(LlamaServer(settings, python=options.peer_python))
