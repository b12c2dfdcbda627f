"""The smallest context and batches that the command line allows."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.config import ModelConfig
from anchorline.llama.model import load_model
from tests.support.runtimes import feed, make_runtime, random_tokens

ONES: tuple[dict[str, Any], ...] = (
    {"batch_tokens": 1},
    {"ubatch_tokens": 1},
    {"batch_tokens": 1, "ubatch_tokens": 1},
    {"context_tokens": 1},
    {"context_tokens": 1, "batch_tokens": 1, "ubatch_tokens": 1},
)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen35", "mamba2"])
def test_the_memory_is_the_same_with_the_smallest_sizes(architecture: str) -> None:
    model = load_model(ModelConfig(model=f"test:{architecture}"))
    ordinary = make_runtime(model, context_tokens=256)
    expected, bytes_per_token = ordinary.capabilities, ordinary.limits.bytes_per_token
    ordinary.close()
    for sizes in ONES:
        runtime = make_runtime(model, **{"context_tokens": 256, **sizes})
        assert runtime.capabilities == expected
        assert runtime.limits.bytes_per_token == bytes_per_token
        assert [runtime.length(sequence) for sequence in range(3)] == [0, 0, 0]
        assert (runtime.batch.size, runtime.batch.room) == (0, runtime.limits.batch_tokens)
        for position, token in enumerate(random_tokens(5)):
            feed(runtime, token[None], start=position)
        assert runtime.length(0) == 5
        runtime.close()
    model.close()
