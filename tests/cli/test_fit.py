"""What fits: the arithmetic over made-up models, and the command over real ones."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cli.fitting import CONTEXT_STEP, LEAST_CONTEXT, STATES_PER_CONVERSATION, Fit, Measure, Room, fit
from anchorline.cli.main import cli
from anchorline.errors import ConfigError
from anchorline.llama.footprint import Footprint
from anchorline.llama.interface import MemoryKind

GIB = 1 << 30
KIB = 1 << 10
TYPE_SHARES = {"f16": 1.0, "q8_0": 0.53, "q4_0": 0.28}


def a_model(*, weights: int = 4 * GIB, row: int = 100 * KIB, state: int = 0, fixed: int = 0) -> Measure:
    """A model of 32 layers whose memory grows in a straight line with the context."""

    def measure(tokens: int, kv_type: str) -> Footprint:
        row_bytes = int(row * TYPE_SHARES[kv_type])
        return Footprint(
            kind=MemoryKind.HYBRID if state else MemoryKind.PLAIN,
            layers=32,
            context_tokens=tokens,
            weights_bytes=weights,
            kv_bytes=tokens * row_bytes + fixed,
            compute_bytes=GIB // 4 + tokens * 1024,
            row_bytes=row_bytes,
            state_bytes=state,
        )

    return measure


def fitted(measure: Measure, *, ctx: int = 65536, vram: int | None, ram: int = 64 * GIB, kv_type: str = "f16") -> Fit:
    room = Room(vram_bytes=vram, ram_bytes=ram)
    return fit("m", context_tokens=ctx, kv_type=kv_type, parallel=4, room=room, measure=measure)


def test_what_fits_needs_no_change() -> None:
    result = fitted(a_model(), vram=24 * GIB)
    assert result.fits
    assert result.cache_bytes == result.room.ram_to_use_bytes
    assert 62 * GIB < result.cache_bytes < 63.5 * GIB
    by_length = {entry.tokens: entry for entry in result.conversations}
    assert sorted(by_length) == [4096, 16384, 65536]
    assert by_length[16384].saved_bytes == 16384 * 100 * KIB
    assert by_length[16384].in_host == result.cache_bytes // by_length[16384].saved_bytes
    assert by_length[16384].resident == 4


def test_in_ram_the_model_takes_from_the_cache() -> None:
    with_gpu, without = fitted(a_model(), vram=24 * GIB), fitted(a_model(), vram=None)
    assert without.cache_bytes == with_gpu.cache_bytes - without.footprint.live_bytes


def test_states_are_part_of_a_conversation() -> None:
    entry = fitted(a_model(state=150 << 20), vram=24 * GIB).conversations[0]
    assert entry.saved_bytes == 4096 * 100 * KIB + STATES_PER_CONVERSATION * (150 << 20)


def test_too_little_vram_says_what_to_change() -> None:
    missing, kv_type, context, layers = fitted(a_model(), vram=8 * GIB).changes
    assert missing.startswith("VRAM: 10.6GiB for weights, live KV and compute buffers are 2.6GiB more")
    assert kv_type == "--kv-type q8_0 takes 7.6GiB and fits"
    assert context.startswith("--ctx 38")
    assert layers == "--gpu-layers 24 leaves 9 of 33 layers in RAM"


def test_weights_that_fit_nowhere() -> None:
    result = fitted(a_model(weights=80 * GIB), vram=None)
    assert result.changes[-1].startswith("the weights alone do not fit")
    assert result.cache_bytes == 0


def test_too_little_ram_for_one_conversation() -> None:
    (change,) = fitted(a_model(), vram=24 * GIB, ram=4 * GIB).changes
    assert change.startswith("RAM: a conversation of 65536 tokens takes 6.2GiB of --cache-ram; give 2.9")


def test_a_kv_type_that_heads_cannot_take_is_not_proposed() -> None:
    plain = a_model()

    def measure(tokens: int, kv_type: str) -> Footprint:
        if kv_type == "q8_0":
            raise ConfigError("--cache-type-k q8_0 packs 32 values")
        return plain(tokens, kv_type)

    assert any(change.startswith("--kv-type q4_0") for change in fitted(measure, vram=8 * GIB).changes)


@given(st.integers(LEAST_CONTEXT + 1, 1 << 20), st.integers(1, 64 * GIB), st.integers(0, 2 * GIB))
def test_the_largest_context_fits_and_one_a_little_larger_does_not(ctx: int, vram: int, fixed: int) -> None:
    measure = a_model(fixed=fixed)
    changes = fitted(measure, ctx=ctx, vram=vram).changes
    for change in changes:
        if change.startswith("--ctx "):
            largest = int(change.split()[1])
            assert measure(largest, "f16").live_bytes <= vram
            assert measure(largest + 2 * CONTEXT_STEP, "f16").live_bytes > vram


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fit", *arguments])


def test_the_command_prints_what_it_measured() -> None:
    result = run("test:qwen35", "--ctx", "4096", "--ram", "4GiB", "--json")
    assert result.exit_code == 0, result.output
    account = json.loads(result.stdout)
    assert account["kind"] == "hybrid"
    assert account["row_bytes"] == 2 * 2 * 2 * 32 * 2 + 24
    assert account["fits"] is True
    assert account["conversations"][-1]["tokens"] == 4096


def test_a_model_file_that_does_not_fit_ends_with_one() -> None:
    result = run("smollm2", "--ctx", "131072", "--vram", "1GiB", "--ram", "8GiB")
    assert result.exit_code == 1
    assert "smollm2, plain memory, 131072 tokens" in result.stdout
    assert "VRAM: 3GiB for weights" in result.stdout
    assert "is the largest context that fits" in result.stdout
    assert "trained for 8192 tokens" in result.stderr


def test_a_model_that_fits_comes_with_its_command() -> None:
    result = run("smollm2", "--vram", "4GiB", "--ram", "8GiB", "--kv-type", "q8_0")
    assert result.exit_code == 0, result.output
    assert "anchorline serve smollm2 --ctx 8192 -ctk q8_0 -ctv q8_0 --gpu-layers all --cache-ram" in result.stdout


@pytest.mark.parametrize("arguments", [("nowhere.gguf",), ("smollm2", "--kv-type", "q9"), ("test:nothing",)])
def test_refusals_end_with_two(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
