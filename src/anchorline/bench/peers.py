"""llama-server beside us: the same model, the same token ids, its own idea of a cache."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from anchorline.bench.calls import PeerAnswer
from anchorline.bench.client import Client
from anchorline.bench.oracle import Tokens, as_tokens
from anchorline.bench.process import ServerProcess
from anchorline.errors import ConfigError

HOST_SCRIPT = Path(__file__).with_name("llama_server_host.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What the peer is told; everything else is its default."""

    model: Path
    context_tokens: int
    parallel: int = 4
    threads: int = 1
    gpu_layers: int = 0
    flash_attention: str = "auto"
    """``on``, ``off`` or ``auto``."""
    chat: bool = False
    """Whether it answers chats, too, by the model's own template; one that it cannot parse ends it at the start."""
    cache_ram_mib: int | None = None
    """Of its RAM cache; None leaves it at its default of 8192."""


class LlamaServer:
    """llama-server from the package ``xllamacpp``, in a process of ``python`` (see ``check_python``); close it."""

    name = "llama-server"

    def __init__(self, settings: PeerSettings, *, python: str) -> None:
        arguments = {
            "model": str(settings.model),
            "context_tokens": settings.context_tokens,
            "parallel": settings.parallel,
            "threads": settings.threads,
            "gpu_layers": settings.gpu_layers,
            "flash_attention": settings.flash_attention,
            "chat": settings.chat,
            "cache_ram_mib": settings.cache_ram_mib,
        }
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self._process = ServerProcess([python, str(HOST_SCRIPT), json.dumps(arguments)], environment=environment)
        try:
            self._client = Client(self._process.wait_until_listening())
        except BaseException:
            self._process.stop()
            raise

    @property
    def url(self) -> str:
        return self._client.url

    def complete(self, prompt: Tokens, *, max_tokens: int) -> PeerAnswer:
        """Continue ``prompt`` greedily; raises CallFailed."""
        body = {
            "prompt": prompt.tolist(),
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": True,
            "return_tokens": True,
        }
        answer = self._client.post("/completion", body)
        timings = answer["timings"]
        return PeerAnswer(
            prompt_tokens=int(timings["prompt_n"]) + int(timings["cache_n"]),
            prefilled_tokens=int(timings["prompt_n"]),
            reply_tokens=as_tokens(answer["tokens"]),
        )

    def close(self) -> None:
        self._client.close()
        self._process.stop()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_python(python: str) -> None:
    """Raise ConfigError unless ``python`` can import xllamacpp."""
    try:
        code = subprocess.run([python, "-c", "import xllamacpp"], check=False, capture_output=True).returncode
    except OSError as error:
        raise ConfigError(f"--peer-python {python}: {error}") from error
    if code:
        raise ConfigError(
            f"--peer llama-server needs the package xllamacpp, which {python} cannot import; "
            f"install it with pip install 'anchorline[peers]' or name another Python with --peer-python"
        )
