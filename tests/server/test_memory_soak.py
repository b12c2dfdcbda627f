"""What the kernel counts of a server's memory: bounded by the budget, and flat once that is full."""

from __future__ import annotations

import random

import pytest

from anchorline.bench.client import Client
from anchorline.bench.long_sessions import process_bytes
from anchorline.bench.process import start_anchorline

MIB = 1 << 20
SLACK_MIB = 6
"""For Python's own heap and pages of 2 MiB that are used in part."""
OTHERS = ("llama", "qwen35")


def evictions(client: Client) -> float:
    return client.metrics()["anchorline_evictions_total"]


def soak(architecture: str, *, prompts: int, prompt_tokens: int, budget_mib: int) -> tuple[list[int], float]:
    """Resident bytes after each of so many distinct prompts, and how many segments were evicted.

    Prompts are sent as ids: texts are memoised besides, within limits of their own.
    """
    draw = random.Random(7)
    small = ("--threads", "1", "--ctx", "2048", "--cache-ram", f"{budget_mib}m", "--log-level", "warning")
    with start_anchorline([f"test:{architecture}", *small]) as server, Client(server.wait_until_listening()) as client:
        resident = []
        for _ in range(prompts):
            ids = draw.choices(range(500), k=prompt_tokens)
            client.post("/v1/completions", {"prompt": ids, "max_tokens": 4})
            resident.append(process_bytes(server.pid, "VmRSS"))
        return resident, evictions(client)


@pytest.mark.parametrize("architecture", ["gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_full_cache_takes_its_budget_and_no_more(architecture: str) -> None:
    resident, evicted = soak(architecture, prompts=90, prompt_tokens=400, budget_mib=8)
    grown = resident[-1] - resident[0]
    assert evicted > 0
    assert grown <= (8 + SLACK_MIB) * MIB, grown / MIB


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_distinct_prompts_leave_memory_flat() -> None:
    resident, evicted = soak("llama", prompts=2000, prompt_tokens=250, budget_mib=16)
    assert evicted > 0
    settled = resident[499]
    assert all(abs(now - settled) <= 0.05 * settled for now in resident[499:]), (settled, resident[-1])
