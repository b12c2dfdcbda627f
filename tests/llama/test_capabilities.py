"""What is said of each memory kind, and what happens when model and memory disagree."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from anchorline.llama import capabilities
from anchorline.llama.interface import MemoryKind
from anchorline.llama.model import Model
from tests.llama.chains import ARCHITECTURES, CUTS, DELTA, KINDS, PROMPT, every_architecture, prefill, restore
from tests.support.runtimes import feed, fresh, make_runtime

Models = Callable[[str], Model]


@every_architecture
def test_kinds_and_sizes(architecture: str, test_models: Models, caplog: pytest.LogCaptureFixture) -> None:
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    found = runtime.capabilities
    assert found.kind is KINDS[architecture]
    assert found.has_rows is (found.kind is not MemoryKind.RECURRENT)
    assert found.has_state is (found.kind is not MemoryKind.PLAIN)
    assert found.can_trim is (found.kind is MemoryKind.PLAIN)
    assert (runtime.limits.bytes_per_token > 0) is found.has_rows
    assert "it looks" not in caplog.text
    if found.has_state:
        feed(runtime, PROMPT, start=0)
        state = runtime.export_state(0, fresh)
        assert state is not None
        assert state.nbytes == found.state_bytes
    else:
        assert found.state_bytes == 0
    runtime.close()


def test_every_architecture_has_its_kind_named() -> None:
    assert set(KINDS) == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("architecture", "said", "kind"),
    [
        ("qwen35", MemoryKind.PLAIN, MemoryKind.HYBRID),
        ("gemma3", MemoryKind.PLAIN, MemoryKind.WINDOWED),
        ("lfm2-windowed", MemoryKind.PLAIN, MemoryKind.HYBRID_WINDOWED),
        ("mamba2", MemoryKind.PLAIN, MemoryKind.RECURRENT),
        *(
            (name, MemoryKind.RECURRENT, MemoryKind.RECURRENT)
            for name in ("llama", "qwen35", "gemma3", "lfm2-windowed")
        ),
        ("mamba2", MemoryKind.HYBRID, MemoryKind.RECURRENT),
        ("qwen35", MemoryKind.HYBRID_WINDOWED, MemoryKind.RECURRENT),
    ],
)
def test_on_disagreement_the_safer_kind_holds_and_restores(
    architecture: str,
    said: MemoryKind,
    kind: MemoryKind,
    test_models: Models,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(capabilities, "memory_kind", lambda model: said)
    with caplog.at_level(logging.WARNING, logger="anchorline.llama"):
        runtime = make_runtime(test_models(architecture), context_tokens=1024)
    assert runtime.capabilities.kind is kind
    assert f"says that its memory is {said}, but it looks {KINDS[architecture]}" in caplog.text
    pieces = prefill(runtime, CUTS)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    assert pieces[-1].state.nbytes <= runtime.capabilities.state_bytes
    runtime.remove(0, 0)
    restore(runtime, pieces)
    back = feed(runtime, DELTA, start=CUTS[-1])
    runtime.close()
    assert np.array_equal(never_left, back)


def test_cells_in_an_unknown_layout_make_states_of_whole_sequences(
    test_models: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capabilities, "CELL_SIZES", (20, 28))
    with caplog.at_level(logging.WARNING, logger="anchorline.llama"):
        runtime = make_runtime(test_models("llama"), context_tokens=1024)
    assert "plain, but it looks like nothing known; it is taken as recurrent with whole sequences" in caplog.text
    assert runtime.capabilities.kind is MemoryKind.RECURRENT
    runtime.close()
