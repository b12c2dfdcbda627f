"""Real models that take turns: what one left is there when it comes back."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cli import hosting
from anchorline.cli.main import cli
from anchorline.cli.several import ModelHost
from anchorline.cli.values import format_size
from anchorline.config import EngineConfig, ModelConfig
from anchorline.errors import ModelError
from anchorline.llama import testmodel
from anchorline.llama.model import Model, load_model
from anchorline.prompt.turns import TurnMemo
from tests.support.serving import serving
from tests.support.several import Conversation, serving_several, settings_of

LLAMA, QWEN = "test:llama", "test:qwen35"
ENGINE = EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=32 << 20, seal=False)
SMALL = EngineConfig(parallel=2, resident_idle=0, cache_ram_bytes=1 << 20, seal=False)
GENERATION_PROMPT_TOKENS = 4
"""At most so many tokens lie behind the last place at which a model with states is resumed."""


@pytest.mark.parametrize("first", [LLAMA, QWEN])
def test_a_model_that_comes_back_prefills_its_delta_alone(first: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anchorline.cli")
    other = QWEN if first == LLAMA else LLAMA
    with serving_several([LLAMA, QWEN], ENGINE) as client:
        mine, others = Conversation(client, first), Conversation(client, other)
        turns = [mine.turn(), mine.turn()]
        assert others.turn()["cache_n"] == 0
        assert f"loading {other}" in caplog.messages
        back = mine.turn()
        assert 0 < back["switch_ms"] <= back["queue_ms"] <= back["ttft_ms"]
        assert "switch_ms" not in turns[1]
        assert metric(client, "switch_seconds_count") == len(["mine", "others", "mine again"])
        assert back["host_n"] == back["cache_n"] >= turns[1]["prompt_tokens"] - GENERATION_PROMPT_TOKENS
        assert back["prompt_n"] <= turns[1]["prompt_n"] + GENERATION_PROMPT_TOKENS
        again = others.turn()
        assert again["host_n"] == again["cache_n"] > 0


def test_rows_that_went_for_another_model_come_back_from_disk(tmp_path: Path) -> None:
    with serving_several([LLAMA, QWEN], SMALL, disk=tmp_path) as client:
        mine = Conversation(client, LLAMA)
        turns = [mine.turn(), mine.turn()]
        for _ in range(3):
            Conversation(client, QWEN, words=500).turn()
        used = metric(client, "host_used_bytes")
        assert used <= SMALL.cache_ram_bytes
        back = mine.turn()
        assert back["disk_n"] > 0
        assert back["cache_n"] >= turns[1]["prompt_tokens"] - GENERATION_PROMPT_TOKENS
        assert back["prompt_n"] <= turns[1]["prompt_n"] + GENERATION_PROMPT_TOKENS


def test_a_model_that_does_not_leave_in_order_leaves_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelHost(settings_of([LLAMA, QWEN], ENGINE))
    loaded = source.load(LLAMA)
    cache = loaded.kept._cache
    assert cache is not None
    cache.storage.reserve(1000, worth=1.0)
    monkeypatch.setattr(PrefixCache, "leave_disk", None)
    with pytest.raises(TypeError):
        loaded.stop()
    assert cache.arena.used_bytes == 0
    assert loaded.free()
    monkeypatch.undo()
    again = source.load(LLAMA)
    again.stop()
    assert again.free()


def test_what_other_models_have_pinned_is_told() -> None:
    with serving_several([LLAMA, QWEN], ENGINE) as client:
        head = [{"role": "system", "content": "You help. " * 20}]
        pinned = client.post("/cache/anchors", json={"model": LLAMA, "messages": head}).json()["bytes"]
        listed = client.get("/cache/anchors", params={"model": QWEN}).json()
        assert listed["parked_pinned_bytes"] == pinned == metric(client, "parked_pinned_bytes")
        assert client.get("/cache").json()["parked_pinned_bytes"] == pinned
        shown = CliRunner().invoke(cli, ["cache", "ls", "--url", str(client.base_url)])
        assert shown.output.endswith(f" pinned, {format_size(pinned)} for other models\n")


def test_the_shell_names_the_model_whose_pins_are_meant(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "You help. " * 20}]}))
    with serving_several([LLAMA, QWEN], ENGINE) as client:

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(cli, ["cache", *arguments, "--url", str(client.base_url)])

        (anchor,) = json.loads(run("warm", str(path), "--model", QWEN, "--json").stdout)
        assert client.get("/health").json()["models"][QWEN] == "loaded"
        assert json.loads(run("ls", "--model", LLAMA, "--json").stdout)["data"] == []
        refused = run("unpin", anchor["id"])
        assert refused.exit_code == 1
        assert refused.stderr.endswith(f"no anchor has the id '{anchor['id']}' among those of {LLAMA}\n")
        pin = ("pin", anchor["id"], "--name", "mine")
        for command in (("ls",), ("stats",), pin, ("unpin", anchor["id"]), ("clear",)):
            done = run(*command, "--model", QWEN)
            assert done.exit_code == 0, done.output
        assert client.get("/health").json()["models"][QWEN] == "loaded"


def test_counters_go_on_over_loads_and_the_bytes_in_ram_count_when_none_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving_several([LLAMA, QWEN], ENGINE) as client:
        mine, others = Conversation(client, LLAMA), Conversation(client, QWEN)
        turns = [conversation.turn() for conversation in (mine, others, mine)]
        decoded = sum(turn["prompt_n"] + turn["predicted_n"] - 1 for turn in turns)

        def refuse(config: ModelConfig) -> Model:
            raise ModelError("there is no memory for it")

        monkeypatch.setattr(hosting, "load_model", refuse)
        with pytest.raises(AssertionError, match="no memory"):
            others.turn()
        assert "loading" not in client.get("/health").json()["models"].values()
        assert "loaded" not in client.get("/health").json()["models"].values()
        assert metric(client, "host_used_bytes") > 0
        assert metric(client, "host_budget_bytes") == ENGINE.cache_ram_bytes
        assert metric(client, "saved_segments_total") >= len(turns)
        assert metric(client, "decoded_tokens_total") == decoded


def metric(client: httpx.Client, name: str) -> float:
    line = next(line for line in client.get("/metrics").text.splitlines() if line.startswith(f"anchorline_{name} "))
    return float(line.split()[1])


def test_calls_for_two_models_at_once_get_what_each_would_say_alone(test_models: Callable[[str], Model]) -> None:
    exact = EngineConfig(exact=True, cache_ram_bytes=32 << 20, seal=False)
    asked = [(model, f"{number}: tell me more") for number, model in itertools.product(range(3), (LLAMA, QWEN))]

    def said(client: httpx.Client, model: str, text: str) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": text * 20}], "max_tokens": 12}
        reply = client.post("/v1/chat/completions", json=body | {"temperature": 0}).json()
        content: str = reply["choices"][0]["message"]["content"]
        return content

    alone: dict[tuple[str, str], str] = {}
    for model in (LLAMA, QWEN):
        with (
            serving(test_models(model.removeprefix("test:")), exact, context_tokens=4096) as live,
            httpx.Client(base_url=live.url, timeout=120) as client,
        ):
            alone |= {(name, text): said(client, name, text) for name, text in asked if name == model}
    with serving_several([LLAMA, QWEN], exact) as client, ThreadPoolExecutor(len(asked)) as threads:
        for _ in range(2):
            answers = threads.map(lambda each: said(client, *each), asked)
            assert dict(zip(asked, answers, strict=True)) == alone


def test_generated_turns_are_known_again_by_the_model_that_made_them(tmp_path: Path) -> None:
    save_model(tmp_path / "m.gguf", seed=0)
    source = ModelHost(settings_of([str(tmp_path / "m.gguf")], ENGINE))

    def turns() -> TurnMemo | None:
        loaded = source.load("m")
        loaded.stop()
        assert loaded.free()
        return loaded.state.turns

    first = turns()
    assert first is not None
    assert turns() is first
    save_model(tmp_path / "m.gguf", seed=1)
    assert turns() is not first, "their ids mean nothing to another model"


def save_model(path: Path, *, seed: int) -> None:
    model = load_model(ModelConfig(model=LLAMA, test_seed=seed))
    testmodel.save(model.handle, path)
    model.close()


def test_a_file_that_is_replaced_while_it_is_loaded_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "m.gguf", seed=0)
    save_model(tmp_path / "new", seed=1)
    source = ModelHost(settings_of([str(tmp_path / "m.gguf")], ENGINE))

    def load_what_is_replaced(config: ModelConfig) -> Model:
        model = load_model(config)
        (tmp_path / "new").replace(tmp_path / "m.gguf")
        return model

    with monkeypatch.context() as patch:
        patch.setattr(hosting, "load_model", load_what_is_replaced)
        with pytest.raises(ModelError, match=r"m\.gguf was changed while it was loaded"):
            source.load("m")
    loaded = source.load("m")
    loaded.stop()
    assert loaded.free()


def test_files_of_a_directory_also_a_damaged_and_a_changed_one(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        save_model(tmp_path / f"{name}.gguf", seed=seed)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "one.gguf").read_bytes()[:-5000])
    with serving_several([], ENGINE, directory=tmp_path) as client:
        assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == ["cut", "one", "two"]
        one, two = Conversation(client, "one"), Conversation(client, "two")
        one.turn()
        failed = client.post("/v1/completions", json={"model": "cut", "prompt": "hi"})
        assert failed.status_code == 503
        assert str(tmp_path / "cut.gguf") in failed.json()["error"]["message"]
        assert one.turn()["cache_n"] > 0
        two.turn()
        save_model(tmp_path / "new", seed=2)
        (tmp_path / "new").replace(tmp_path / "one.gguf")
        assert one.turn()["cache_n"] == 0, "what the old file computed says nothing about the new one"
