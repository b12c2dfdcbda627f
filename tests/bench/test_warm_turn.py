"""The benchmark of warm turns, on a server of its own."""

from __future__ import annotations

import json

from click.testing import CliRunner

from anchorline.bench import warm_turn


def test_a_warm_turn_of_a_test_model_is_measured() -> None:
    arguments = ["--model", "test:llama", "--anchor-tokens", "2000", "--scales", "1", "--rounds", "1", "--threads", "1"]
    result = CliRunner().invoke(warm_turn.main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (depth,) = json.loads(result.stdout)
    (warm,), (floor,) = depth["restored"], depth["continued"]
    assert warm["restored_tokens"] == warm["prompt_tokens"] - warm["delta_tokens"] > 1500
    assert floor["delta_tokens"] < 100
