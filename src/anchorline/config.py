"""Every setting, declared once; the command line and its help are made from these fields.

A field's metadata hold its flag, its help and, where the values are few, its choices. Byte sizes
and "auto" values are resolved in ``cli`` before a config is built, so nothing here touches the
machine. ``validate()`` raises ConfigError naming the flag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from anchorline.errors import ConfigError
from anchorline.limits import Limits
from anchorline.settings import in_range, setting

GPU_LAYERS_AUTO, GPU_LAYERS_ALL = -1, -2
"""All layers: when a GPU is there, or as asked for; llama.cpp takes any negative number as all."""

MetadataValue: TypeAlias = bool | int | float | str
"""A value of a model file's metadata; its Python type decides the type it has there."""

MAX_LAYERS = 512
"""Most layers that llama.cpp gives a model."""

HEAD_DIGEST_DIGITS = 16
"""Hexadecimal digits of the name of a head, as the log shows it and ``--share-heads`` takes it."""
_HEAD_DIGEST = re.compile(f"[0-9a-f]{{{HEAD_DIGEST_DIGITS}}}")

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model is loaded and where it lies; flags named as llama-server names them."""

    model: str = "smollm2"
    """A path to a GGUF file, ``smollm2``, or ``test:ARCH``."""
    gpu_layers: int = setting(
        GPU_LAYERS_AUTO,
        "--gpu-layers",
        "Layers to keep in VRAM: a number, 'all', or 'auto' (all when a GPU is there).",
        aliases=("-ngl", "--n-gpu-layers"),
    )
    split_mode: str = setting(
        "layer",
        "--split-mode",
        "How to split the model over several GPUs: not, by layers, weights by rows, or weights and KV cache.",
        aliases=("-sm",),
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_split: tuple[float, ...] = setting(
        (), "--tensor-split", "Share of the model for each GPU, comma-separated, e.g. 3,1.", aliases=("-ts",)
    )
    main_gpu: int = setting(
        0,
        "--main-gpu",
        "Index of the GPU that holds the whole model; needs --split-mode none.",
        aliases=("-mg",),
        minimum=0,
    )
    devices: tuple[str, ...] = setting(
        (),
        "--device",
        "Devices to put layers on, comma-separated, in the order of --tensor-split; 'none' keeps to the CPU.",
        aliases=("-dev",),
    )
    override_tensor: tuple[tuple[str, str], ...] = setting(
        (),
        "--override-tensor",
        "Put the tensors whose name matches a regular expression into a buffer: PATTERN=BUFFER, comma-separated; "
        "may be given more than once, the first match holds.",
        aliases=("-ot",),
    )
    cpu_moe: bool = setting(
        False, "--cpu-moe", "Keep the expert weights of all layers in host RAM.", aliases=("-cmoe",)
    )
    cpu_moe_layers: int = setting(
        0,
        "--n-cpu-moe",
        "Keep the expert weights of the first N layers in host RAM.",
        aliases=("-ncmoe",),
        minimum=0,
        maximum=MAX_LAYERS,
    )
    cpu_ffn_layers: int = setting(
        0,
        "--n-cpu-ffn",
        "Keep the dense feed-forward weights of the first N layers in host RAM.",
        aliases=("-ncffn",),
        minimum=0,
        maximum=MAX_LAYERS,
    )
    override_metadata: tuple[tuple[str, MetadataValue], ...] = setting(
        (),
        "--override-kv",
        "Read the model file as if its metadata held KEY=TYPE:VALUE (int, float, bool, str), comma-separated; "
        "may be given more than once.",
    )
    check_tensors: bool = setting(False, "--check-tensors", "Refuse a model whose weights hold invalid numbers.")
    repack: bool = setting(
        True, "--repack/--no-repack", "Rearrange weights in host RAM for the CPU's instructions.", aliases=(" /-nr",)
    )
    no_host: bool = setting(
        False, "--no-host", "Don't hold weights in the GPU driver's host buffers, so that they can be repacked."
    )
    mmap: bool = setting(True, "--mmap/--no-mmap", "Map the model file instead of reading it.")
    mlock: bool = setting(False, "--mlock", "Keep the model in RAM.")
    lora: tuple[tuple[str, float], ...] = setting(
        (),
        "--lora",
        "LoRA adapters as PATH or PATH:SCALE, comma-separated; may be given more than once.",
        aliases=("--lora-scaled",),
    )
    test_context: int = setting(
        32768, "--test-context", "Training context of a test:ARCH model, at most 131072.", minimum=256, maximum=131072
    )
    test_seed: int = setting(0, "--test-seed", "Seed of a test:ARCH model's random weights.", minimum=0)
    test_spelling: bool = False
    """Whether a test:ARCH model has the vocabulary that spells any text; so with --script."""
    test_control: tuple[str, ...] = ()
    """Control tokens of that vocabulary beside those of ChatML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """The live context."""

    context_tokens: int = setting(
        0,
        "--ctx",
        "Tokens the live KV cache holds, shared by all streams; 0 takes the model's training context.",
        aliases=("-c", "--ctx-size"),
        minimum=0,
        maximum=1 << 24,
    )
    batch_tokens: int = setting(
        2048,
        "--batch-size",
        "Most tokens in one decode call; prompts take less of it where that would hold up others.",
        aliases=("-b",),
        minimum=1,
        maximum=1 << 16,
    )
    ubatch_tokens: int = setting(
        512, "--ubatch-size", "Most tokens computed at once.", aliases=("-ub",), minimum=1, maximum=1 << 16
    )
    threads: int = setting(
        0,
        "--threads",
        "Threads for generation; 0 takes the number of physical cores.",
        aliases=("-t",),
        minimum=0,
        maximum=512,
    )
    threads_batch: int = setting(
        0, "--threads-batch", "Threads for prefill; 0 takes --threads.", aliases=("-tb",), minimum=0, maximum=512
    )
    flash_attention: str = setting(
        "auto", "--flash-attn", "Flash attention.", aliases=("-fa",), choices=("on", "off", "auto")
    )
    type_k: str = setting("f16", "--cache-type-k", "Data type of K rows.", aliases=("-ctk",), choices=KV_TYPES)
    type_v: str = setting("f16", "--cache-type-v", "Data type of V rows.", aliases=("-ctv",), choices=KV_TYPES)
    offload_kqv: bool = setting(
        True, "--kv-offload/--no-kv-offload", "Keep the live KV cache on the GPU.", aliases=("-kvo/-nkvo",)
    )
    op_offload: bool = setting(
        True, "--op-offload/--no-op-offload", "Let the GPU compute large batches over weights that lie in host RAM."
    )
    rope_scaling: str = setting("model", "--rope-scaling", "RoPE scaling.", choices=("model", "none", "linear", "yarn"))
    rope_scale: float = setting(
        0.0, "--rope-scale", "RoPE: stretch the context by this factor; the same as --rope-freq-scale 1/N.", minimum=0.0
    )
    rope_freq_base: float = setting(0.0, "--rope-freq-base", "RoPE base frequency; 0 takes the model's.", minimum=0.0)
    rope_freq_scale: float = setting(
        0.0, "--rope-freq-scale", "RoPE frequency scale; 0 takes the model's.", minimum=0.0
    )
    yarn_orig_ctx: int = setting(
        0, "--yarn-orig-ctx", "YaRN: the original context size; 0 takes the training context.", minimum=0
    )
    yarn_ext_factor: float = setting(
        -1.0, "--yarn-ext-factor", "YaRN: extrapolation mix factor; negative takes the model's."
    )
    yarn_attn_factor: float = setting(-1.0, "--yarn-attn-factor", "YaRN: magnitude scale; negative takes the model's.")
    yarn_beta_fast: float = setting(
        -1.0, "--yarn-beta-fast", "YaRN: low correction dimension; negative takes the model's."
    )
    yarn_beta_slow: float = setting(
        -1.0, "--yarn-beta-slow", "YaRN: high correction dimension; negative takes the model's."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Streams, queue and cache."""

    parallel: int = setting(
        4, "--parallel", "Streams generated at the same time.", aliases=("-np",), minimum=1, maximum=250
    )
    queue: int = setting(
        64, "--queue", "Requests that may wait; one more is answered with 429.", minimum=0, maximum=100000
    )
    max_passes: int = setting(
        16,
        "--max-passes",
        "How many later requests with less to prefill may start before one that waits; 0 keeps to their order.",
        minimum=0,
        maximum=100000,
    )
    cache: bool = setting(True, "--cache/--no-cache", "Restore and save prefixes.")
    exact: bool = setting(
        False,
        "--exact",
        "Make answers bit-identical with the cache cold, warm or off: one stream at a time, fixed chunk boundaries.",
    )
    cache_ram_bytes: int = setting(
        1 << 30,
        "--cache-ram",
        "Host RAM for saved segments (e.g. 8GiB); default a quarter of the free RAM, at least 1GiB.",
        minimum=1 << 20,
        maximum=1 << 44,
    )
    eviction: str = setting(
        "cost-aware",
        "--eviction",
        "What stays when --cache-ram is full: what saves most prefill, what was used last, or what was there first.",
        choices=("cost-aware", "lru", "none"),
    )
    pin_budget_bytes: int | None = setting(
        None,
        "--pin-budget",
        "What pins may hold of --cache-ram: a size, or a percentage such as 30%.",
        minimum=0,
        maximum=1 << 44,
    )
    max_pins: int = setting(1024, "--max-pins", "Most pins at a time.", minimum=1, maximum=1 << 16)
    checkpoint_every: int = setting(
        0,
        "--checkpoint-every",
        "Models with states: tokens between two states kept of a long prefill; 0 lets states cost a third of the rows.",
        minimum=0,
        maximum=1 << 20,
    )
    resident_idle: int = setting(
        2,
        "--resident-idle",
        "Most finished sequences kept in the live cache, so that they go on without a restore.",
        minimum=0,
        maximum=250,
    )

    seal: bool = setting(
        True,
        "--seal/--no-seal",
        "In idle time, prefill what a conversation's next request will begin with; needs the cache, not with --exact.",
    )

    def validate(self) -> None:
        """Check the ranges; raise ConfigError naming the flag and the limit."""
        for declared in fields(self):
            low, high = declared.metadata["minimum"], declared.metadata["maximum"]
            value = getattr(self, declared.name)
            if low is not None and high is not None and value is not None:
                in_range(declared.metadata["flag"], value, low, high)
        if self.pin_budget_bytes is not None and self.pin_budget_bytes > self.cache_ram_bytes:
            raise ConfigError(
                f"--pin-budget is {self.pin_budget_bytes} bytes, more than --cache-ram ({self.cache_ram_bytes})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig:
    """The disk tier; needs the cache."""

    cache_disk: str | None = setting(
        None,
        "--cache-disk",
        "Directory in which saved segments outlive the server, or 'off'. Only one server may use it; one that was not "
        "told to does without while another has the default (docs/disk.md).",
    )
    cache_disk_required: bool = False
    """Whether the server must not start without it."""
    cache_disk_bytes: int = setting(
        20 << 30,
        "--cache-disk-size",
        "What all files in --cache-disk may take together, those of other models too.",
        minimum=1 << 20,
        maximum=1 << 50,
    )
    cache_disk_queue_bytes: int = setting(
        1 << 30,
        "--cache-disk-queue",
        "Most that may wait to be written, and at most a quarter of --cache-ram, of which it is a part; what is beyond "
        "is not written.",
        minimum=1 << 20,
        maximum=1 << 40,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP edge."""

    host: str = setting("127.0.0.1", "--host", "Address to listen on; a public one needs --api-key.")
    port: int = setting(8080, "--port", "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    api_keys: tuple[str, ...] = setting(
        (),
        "--api-key",
        "Key that clients must send as a bearer token; may be given more than once: calls with different keys share "
        "nothing (docs/tenants.md).",
    )
    share_heads: tuple[str, ...] = setting(
        (),
        "--share-heads",
        "Digest of a head (system + tools) that is common to all tenants, as the log shows it (head=…); may be given "
        "more than once. Each tenant can find out whether another has sent that head (docs/tenants.md).",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "--allowed-host", "Host header accepted besides the loopback names; may be given more than once."
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "--allowed-origin", "Browser origin accepted besides the server's own; may be given more than once."
    )
    chat_template: str | None = setting(
        None,
        "--chat-template",
        "Chat template: a built-in one (docs/chat-templates.md), a name in the model file, or a Jinja file.",
    )
    tool_format: str | None = setting(
        None,
        "--tool-format",
        "How the model writes reasoning and tool calls; found from the chat template when not given.",
    )
    float_volatile: bool = setting(
        False,
        "--float-volatile",
        "Say lines of the system prompt that change by themselves, such as clocks, behind the newest user message "
        "instead; changes what the model reads (docs/rewrites.md).",
    )
    canonical_tools: bool = setting(
        False,
        "--canonical-tools",
        "Show tools and the keys of their schemas in one order, however they are sent; changes what the model reads.",
    )
    pin_date: bool = setting(
        False,
        "--pin-date",
        "Let the chat template's clock stand still within a conversation; changes what the model reads.",
    )
    warm: tuple[str, ...] = setting(
        (),
        "--warm",
        "Prefill and pin the heads of the requests in this file once the server answers (docs/pins.md); may be given "
        "more than once.",
    )
    script: str | None = setting(
        None, "--script", "Let a test:ARCH model answer chat calls with the replies in this file (docs/script.md)."
    )
    model_alias: str | None = setting(None, "--alias", "Name under which the model is listed.", aliases=("-a",))
    models_directory: str | None = setting(
        None,
        "--models",
        "Serve every GGUF file in this directory too, each loaded when a request names it, in the place of the one "
        "before (docs/models.md).",
    )
    models_max: int = setting(1, "--models-max", "Models loaded at the same time; no more than 1 as yet.", minimum=1)
    explain_headers: bool = setting(
        False,
        "--explain-headers",
        "Say in x-anchorline-* headers of every reply why its prompt was prefilled; else a request asks for them.",
    )
    shutdown_seconds: float = setting(
        10.0,
        "--shutdown-timeout",
        "Seconds that running calls may go on after SIGTERM or Ctrl-C; a second Ctrl-C ends them at once.",
        minimum=0.0,
        maximum=86400.0,
    )
    limits: Limits = field(default_factory=Limits)

    def validate(self) -> None:
        """Refuse texts that mean nothing: an empty key would let everyone in. Raises ConfigError naming the flag."""
        for declared in fields(self):
            value = getattr(self, declared.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.strip():
                    raise ConfigError(f"{declared.metadata['flag']} must not be empty")
        if any(character.isspace() for key in self.api_keys for character in key):
            raise ConfigError("--api-key must not hold white space")
        for digest in self.share_heads:
            if not _HEAD_DIGEST.fullmatch(digest):
                raise ConfigError(
                    f"--share-heads must be a digest of {HEAD_DIGEST_DIGITS} hexadecimal digits as the log shows it, "
                    f"not {digest!r}"
                )
