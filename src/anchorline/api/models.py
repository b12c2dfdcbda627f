"""What is said about the model and the server: models, props, and what other servers' clients ask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from anchorline.llama.interface import ModelInfo, SamplingParams

OWNER = "anchorline"

FILE_TYPES: Mapping[int, str] = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M"), start=7)),
    **dict(enumerate(("Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS"), start=16)),
    **dict(enumerate(("IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), start=24)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0", "Q2_0"), start=36)),
}
"""``general.file_type`` of a GGUF file, by the names that llama.cpp gives its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The served model as clients see it."""

    name: str
    info: ModelInfo
    context_tokens: int
    parallel: int
    chat_template: str
    bos_text: str
    eos_text: str
    created: int
    """Unix seconds of the server's start."""

    @property
    def fingerprint(self) -> str:
        """Changes when llama.cpp's build or the model changes: OpenAI's ``system_fingerprint``."""
        told = f"{self.info.build}\0{self.info.name}\0{self.info.size_bytes}\0{self.info.parameters}"
        return "fp_" + hashlib.sha256(told.encode()).hexdigest()[:10]


def model_object(served: Served) -> dict[str, Any]:
    """One entry of ``/v1/models``; agents read the context length from differing fields."""
    info = served.info
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": OWNER,
        "context_length": served.context_tokens,
        "max_model_len": served.context_tokens,
        "meta": {
            "n_ctx": served.context_tokens,
            "n_ctx_train": info.train_context_tokens,
            "n_vocab": info.vocab_size,
            "n_embd": info.embedding_length,
            "n_params": info.parameters,
            "size": info.size_bytes,
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One of several models; before it was loaded for the first time only its name is known."""

    name: str
    status: str
    created: int
    """Unix seconds of the server's start."""
    served: Served | None = None


def anthropic_model_list(served: Served) -> dict[str, Any]:
    """``/v1/models`` as Anthropic's clients read it."""
    return _anthropic_list([anthropic_model(served)])


def _anthropic_list(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"data": models, "has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}


def anthropic_model(served: Served) -> dict[str, Any]:
    return _anthropic_model(served.name, served.created)


def _anthropic_model(name: str, created: int) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(created, tz=UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created_at}


def listed_anthropic_model(listed: Listed) -> dict[str, Any]:
    return {**_anthropic_model(listed.name, listed.created), "status": {"value": listed.status}}


def listed_anthropic_models(models: Sequence[Listed]) -> dict[str, Any]:
    """``/v1/models`` of a server with several, as Anthropic's clients read it."""
    return _anthropic_list([listed_anthropic_model(listed) for listed in models])


def listed_model(listed: Listed) -> dict[str, Any]:
    """One entry of a server with several; ``status`` is as llama-server's router has it."""
    unknown = {"id": listed.name, "object": "model", "created": listed.created, "owned_by": OWNER}
    told = unknown if listed.served is None else model_object(listed.served)
    return {**told, "status": {"value": listed.status}}


def listed_models(models: Sequence[Listed]) -> dict[str, Any]:
    """``/v1/models`` of a server with several."""
    known = [_ollama_model(listed.served) for listed in models if listed.served is not None]
    return {"object": "list", "data": [listed_model(listed) for listed in models], "models": known}


def model_list(served: Served) -> dict[str, Any]:
    """``/v1/models``: OpenAI's list, and the ``models`` that llama-server adds for Ollama's clients."""
    return {"object": "list", "data": [model_object(served)], "models": [_ollama_model(served)]}


def props(served: Served) -> dict[str, Any]:
    """``/props`` in llama-server's shape, as far as it applies."""
    shown: dict[str, Any] = {
        "default_generation_settings": {
            "n_ctx": served.context_tokens,
            "params": {"n_predict": -1, "stream": False, **_sampling(SamplingParams())},
        },
        "total_slots": served.parallel,
        "model_alias": served.name,
        "model_path": served.info.name,
        "modalities": {"vision": False, "video": False, "audio": False},
        "chat_template": served.chat_template,
        "bos_token": served.bos_text,
        "eos_token": served.eos_text,
        "build_info": served.info.build,
        "is_sleeping": False,
    }
    if tool_template := served.info.named_templates.get("tool_use"):
        shown["chat_template_tool_use"] = tool_template
    return shown


def show(served: Served) -> dict[str, Any]:
    """``/api/show`` in Ollama's shape, as far as it applies."""
    architecture = served.info.architecture
    return {
        "template": served.chat_template,
        "details": _details(served.info),
        "model_info": {
            "general.architecture": architecture,
            "general.parameter_count": served.info.parameters,
            f"{architecture}.context_length": served.context_tokens,
            f"{architecture}.embedding_length": served.info.embedding_length,
        },
        "capabilities": ["completion", "tools"],
    }


def _ollama_model(served: Served) -> dict[str, Any]:
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": "",
        "size": served.info.size_bytes,
        "digest": "",
        "type": "model",
        "capabilities": ["completion", "tools"],
        "details": _details(served.info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{info.parameters / 1e9:.2f}B",
        "quantization_level": _quantization(info.metadata),
    }


def _quantization(metadata: Mapping[str, str]) -> str:
    """As Ollama writes it, like ``Q8_0``; "unknown" where the file does not say."""
    number = metadata.get("general.file_type", "")
    return FILE_TYPES.get(int(number), "unknown") if number.isascii() and number.isdigit() else "unknown"


def _sampling(defaults: SamplingParams) -> dict[str, Any]:
    """Defaults under llama-server's names; its random seed is the largest 32-bit number."""
    shown = asdict(defaults)
    shown["seed"] = 2**32 - 1
    shown["logit_bias"] = []
    return shown
