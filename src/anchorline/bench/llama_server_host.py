"""Runs llama-server, as the package xllamacpp embeds it, until SIGTERM.

Run by path with a Python that has xllamacpp and perhaps nothing else, so it imports only that and the
standard library. Usage: llama_server_host.py JSON with model, context_tokens, parallel, threads, gpu_layers,
flash_attention (on, off or auto), chat, unified, cache_ram_mib, context_checkpoints, checkpoint_step_tokens; what is
null stays at its default.
"""

from __future__ import annotations

import json
import os
import signal
import sys

CACHE_FIELDS = {
    "cache_ram_mib": "cache_ram_mib",
    "context_checkpoints": "n_ctx_checkpoints",
    "checkpoint_step_tokens": "checkpoint_min_step",
}


def main() -> None:
    import xllamacpp

    settings = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = settings["parallel"]
    params.kv_unified = settings["unified"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.n_gpu_layers = settings["gpu_layers"]
    params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[settings["flash_attention"]]
    params.cache_prompt = True
    for setting, field in CACHE_FIELDS.items():
        if settings[setting] is not None:
            setattr(params, field, settings[setting])
    params.endpoint_slots = True
    params.hostnames = ["127.0.0.1"]
    params.ui = False
    params.verbosity = 1
    params.port = 0
    # Where prompts come as token ids the template is never used; without this one that it cannot parse is fatal.
    params.enable_chat_template = settings["chat"]
    params.use_jinja = settings["chat"]
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", file=sys.stderr, flush=True)
    signal.sigwait(stop)
    # Its threads do not end while a slot is busy; there is nothing to save.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
