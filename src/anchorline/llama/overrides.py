"""Which overrides of a model's metadata llama.cpp survives.

It believes what it is told: a number that does not fit the tensors in the file fails an assertion
deep inside, which ends the process. So of the whole numbers of an architecture only those may be
overridden that describe no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anchorline.config import MetadataValue
from anchorline.errors import ConfigError

FREE_NUMBERS = ("context_length", "attention.sliding_window", "rope.scaling.original_context_length")
"""Whole numbers without a tensor of that size."""
EXPERTS_USED, EXPERTS = "expert_used_count", "expert_count"
ROPE_SCALING_TYPES = ("none", "linear", "yarn", "longrope")
_INT32_MAX = (1 << 31) - 1
_OTHER_FAMILIES = ("general", "tokenizer", "split", "adapter", "quantize", "imatrix")
"""First words of keys that are not an architecture's; llama.cpp copes with whatever those hold."""


def check_overrides(
    overrides: Sequence[tuple[str, MetadataValue]], *, number_in_file: Callable[[str], int | None]
) -> None:
    """Raise ConfigError for an override that can only end the process.

    ``number_in_file`` gives the whole number that the model file itself holds for a key.
    """
    for key, value in overrides:
        family, _, rest = key.partition(".")
        if key == "general.architecture":
            raise ConfigError(f"--override-kv {key}: the file's tensors are those of its own architecture")
        if not rest or family in _OTHER_FAMILIES:
            continue
        match value:
            case bool():
                pass
            case int():
                _check_number(key, rest, value, experts=number_in_file(f"{family}.{EXPERTS}"))
            case float():
                if not math.isfinite(value) or (rest.endswith("epsilon") and value < 0):
                    raise ConfigError(f"--override-kv {key}: {value} is no usable number")
            case str():
                if rest == "rope.scaling.type" and value not in ROPE_SCALING_TYPES:
                    raise ConfigError(
                        f"--override-kv {key} must be one of {', '.join(ROPE_SCALING_TYPES)}, not '{value}'"
                    )


def _check_number(key: str, rest: str, value: int, *, experts: int | None) -> None:
    if rest == EXPERTS_USED and experts:
        high = experts
    elif rest in FREE_NUMBERS:
        high = _INT32_MAX
    else:
        allowed = ", ".join((*FREE_NUMBERS, EXPERTS_USED))
        raise ConfigError(
            f"--override-kv {key}: this number describes the tensors in the file and cannot be overridden; "
            f"of an architecture's whole numbers these can: {allowed} (of a model with experts)"
        )
    if not 1 <= value <= high:
        raise ConfigError(f"--override-kv {key} must lie between 1 and {high}, not {value}")
