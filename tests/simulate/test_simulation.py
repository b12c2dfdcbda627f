"""Simulated replays: they agree with a real server, and show what the policies are worth on recorded traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anchorline.bench.client import Client
from anchorline.bench.live.schedule import AT_ONCE
from anchorline.bench.process import start_anchorline
from anchorline.bench.replay import replay_trace
from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest, chat_only, mix, mix_members, read_trace
from anchorline.config import EngineConfig, ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama.model import load_model
from anchorline.simulate.calls import PromptSource, SimulatedCall, all_at_once, one_after_another
from anchorline.simulate.runtime import Sizes
from anchorline.simulate.simulation import Outcome, most_bytes, simulation_of

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
MIX = ("hermes-fanout", "opencode", "cline", "pi", "langgraph")
PLAIN = Sizes(bytes_per_token=1024)
VOCAB_SIZE = 1000
CONTEXT_TOKENS = 16384
"""Room for little more than the longest of these conversations: what is not in the host tier is prefilled."""
CHEAP_TOKENS = 32
"""So many tokens a server may prefill again because that is quicker than a restore."""

recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded traces are not here")


@pytest.fixture(scope="module")
def source() -> Iterator[PromptSource]:
    model = load_model(ModelConfig(model="test:llama"))
    yield PromptSource(model)
    model.close()


def trace_of(name: str) -> Trace:
    return chat_only(read_trace(RECORDED / f"{name}.jsonl"))


def simulate(
    calls: list[SimulatedCall],
    *,
    eviction: str = "cost-aware",
    budget_bytes: int | None = None,
    max_passes: int = 16,
    sizes: Sizes = PLAIN,
    context_tokens: int = CONTEXT_TOKENS,
) -> Outcome:
    cache_ram_bytes = budget_bytes or most_bytes(calls, sizes)
    config = EngineConfig(eviction=eviction, cache_ram_bytes=cache_ram_bytes, max_passes=max_passes)
    return simulation_of(calls, config, sizes, context_tokens=context_tokens, vocab_size=VOCAB_SIZE).run()


def test_a_call_that_cannot_be_rendered_is_named(source: PromptSource) -> None:
    bodies: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": "hi"}]}, {"messages": []}]
    requests = [TraceRequest(path=CHAT_PATH, body=body, arrival_seconds=0.0, end_seconds=0.0) for body in bodies]
    broken = Trace(name="broken", requests=tuple(requests))
    named = "broken, request 1 of its chat calls: messages"
    with pytest.raises(ConfigError, match=named):
        one_after_another(broken, source)
    with pytest.raises(ConfigError, match=named):
        all_at_once([broken], source)


@recorded
def test_a_real_server_prefills_as_much_call_by_call(source: PromptSource) -> None:
    trace = trace_of("pi")
    simulated = simulate(one_after_another(trace, source))
    options = ("test:llama", "--threads", "1", "--ctx", str(CONTEXT_TOKENS), "--test-context", str(CONTEXT_TOKENS))
    with start_anchorline([*options, "--cache-ram", "64m"]) as server, Client(server.wait_until_listening()) as client:
        real = replay_trace(trace, client)
    assert [call.report.prompt_tokens for call in simulated.calls] == [call.prompt_tokens for call in real.calls]
    for mine, theirs in zip(simulated.calls, real.calls, strict=True):
        assert abs(mine.report.prefilled_tokens - theirs.prefilled_tokens) <= CHEAP_TOKENS, mine.index


@recorded
@pytest.mark.parametrize("sizes", [PLAIN, Sizes(bytes_per_token=1024, state_bytes=1 << 16)], ids=["plain", "hybrid"])
def test_a_budget_that_holds_everything_prefills_what_a_perfect_cache_would(source: PromptSource, sizes: Sizes) -> None:
    outcome = simulate(one_after_another(mix([trace_of(name) for name in MIX]), source), sizes=sizes)
    assert outcome.ratio is not None
    assert outcome.ratio <= 1.05


@recorded
def test_so_it_does_with_all_agents_at_once(source: PromptSource) -> None:
    calls = all_at_once(mix_members([trace_of(name) for name in MIX]), source)
    outcome = simulate(calls)
    assert len(outcome.calls) == len(calls)
    assert outcome.ratio is not None
    assert outcome.ratio <= 1.05


@recorded
@pytest.mark.parametrize("share", [0.25, 0.265, 0.28])
def test_in_about_a_quarter_of_it_a_fifth_less_is_prefilled_than_by_recency(source: PromptSource, share: float) -> None:
    calls = one_after_another(mix([trace_of(name) for name in MIX]), source)
    budget = int(simulate(calls, eviction="none").peak_bytes * share)
    recency = simulate(calls, eviction="lru", budget_bytes=budget)
    ours = simulate(calls, budget_bytes=budget)
    assert ours.prefilled_tokens <= 0.8 * recency.prefilled_tokens


@recorded
def test_time_passes_between_calls_as_it_did(source: PromptSource) -> None:
    """The second call is sent after the pause that was recorded, at the pace that is asked for."""
    trace = trace_of("pi")
    pause = trace.requests[1].arrival_seconds - trace.requests[0].end_seconds
    assert pause > 0
    for pace in (1.0, 10.0):
        first, second = all_at_once([trace], source, pace=pace)[:2]
        assert first.gap_seconds == 0.0
        assert second.gap_seconds == pytest.approx(pause / pace)
    calls = all_at_once([trace], source, pace=0.001)
    sizes = Sizes(bytes_per_token=1024)
    config = EngineConfig(cache_ram_bytes=most_bytes(calls, sizes))
    simulation = simulation_of(calls, config, sizes, context_tokens=CONTEXT_TOKENS, vocab_size=VOCAB_SIZE)
    simulation.run()
    assert simulation.clock() >= sum(call.gap_seconds for call in calls)


@recorded
@pytest.mark.parametrize("pace", [1.0, 10.0, AT_ONCE])
def test_where_the_context_holds_the_agents_hardly_anything_else_is_prefilled(
    source: PromptSource, pace: float
) -> None:
    calls = all_at_once(mix_members([trace_of(name) for name in MIX]), source, pace=pace)
    quarter = simulate(calls, eviction="none", context_tokens=65536).peak_bytes // 4
    ours = simulate(calls, budget_bytes=quarter, context_tokens=65536)
    assert ours.ratio is not None
    assert ours.ratio <= 1.05


@recorded
@pytest.mark.parametrize("pace", [1.0, 10.0, AT_ONCE])
def test_in_a_small_one_it_is_a_fifth_less_than_by_recency_and_order_of_arrival(
    source: PromptSource, pace: float
) -> None:
    calls = all_at_once(mix_members([trace_of(name) for name in MIX]), source, pace=pace)
    quarter = simulate(calls, eviction="none", context_tokens=65536).peak_bytes // 4
    classical = simulate(calls, eviction="lru", budget_bytes=quarter, max_passes=0)
    ours = simulate(calls, budget_bytes=quarter)
    assert ours.prefilled_tokens <= 0.8 * classical.prefilled_tokens
