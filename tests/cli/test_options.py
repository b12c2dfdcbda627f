"""Options are the settings: every one is there, parses to its field, and names its limits."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest
from click.testing import CliRunner

from anchorline.cli.hosting import sequences_for
from anchorline.cli.main import cli
from anchorline.cli.options import build, options_of
from anchorline.cli.serve import SETTINGS, settings_from, warn_of_large_cache
from anchorline.cli.serve import serve as serve_command
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.errors import ConfigError
from anchorline.limits import Limits

CONFIGS = (ModelConfig, ContextConfig, EngineConfig, DiskConfig, ServerConfig, Limits)


def declared_flags() -> list[str]:
    return [
        flag
        for config in CONFIGS
        for field in dataclasses.fields(config)
        if "flag" in field.metadata
        for flag in "/".join((field.metadata["flag"], *field.metadata["aliases"])).split("/")
        if flag.strip()
    ]


def parse(*arguments: str) -> dict[str, Any]:
    with serve_command.make_context("serve", list(arguments)) as context:
        return dict(context.params)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


def test_every_setting_has_its_own_option() -> None:
    names = [option.name for option in SETTINGS]
    assert len(names) == len(set(names))
    flags = [flag for option in SETTINGS for flag in (*option.opts, *option.secondary_opts)]
    assert sorted(flags) == sorted(declared_flags())
    assert len(flags) == len(set(flags))


def test_help_lists_every_setting_with_its_help() -> None:
    code, output = run("serve", "--help")
    assert code == 0
    squeezed = " ".join(output.split())
    for config in CONFIGS:
        for field in dataclasses.fields(config):
            if "flag" in field.metadata:
                assert field.metadata["flag"].split("/")[0] in squeezed
                # Lines are wrapped and long words divided at hyphens.
                assert field.metadata["help"].split(";")[0].replace(" ", "") in output.replace("\n", "").replace(
                    " ", ""
                )


def test_help_shows_the_range_of_a_size() -> None:
    options = {option.name: option for option in SETTINGS}
    with click.Context(serve_command) as context:
        assert options["cache_ram_bytes"].get_help_extra(context)["range"] == "1MiB to 16TiB"


def test_help_fits_a_terminal_and_names_no_missing_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, commands = run("--help")
    assert "..." not in commands.partition("Commands:")[2]
    assert "None" not in run("serve", "--help")[1]


def test_without_options_the_defaults_of_the_settings_hold() -> None:
    values = parse()
    assert build(ModelConfig, values) == ModelConfig()
    assert build(ContextConfig, values) == ContextConfig()
    assert build(ServerConfig, values) == ServerConfig()
    assert values["cache_ram_bytes"] is None


@pytest.mark.parametrize("flag", ["-m", "--model"])
def test_the_model_is_an_argument_or_behind_a_flag(flag: str) -> None:
    assert [parse(*given)["model"] for given in (["a.gguf"], [flag, "a.gguf"], [])] == ["a.gguf", "a.gguf", "smollm2"]
    code, output = run("serve", "a.gguf", flag, "b.gguf")
    assert code == 2
    assert "--model" in output


def test_what_depends_on_the_machine_is_filled_in() -> None:
    settings = settings_from(parse())
    assert settings.engine.cache_ram_bytes >= 1 << 30
    assert settings.context.threads >= 1
    assert settings.context.threads_batch == settings.context.threads
    told = settings_from(parse("--cache-ram", "3g", "-t", "5", "-tb", "7"))
    assert (told.engine.cache_ram_bytes, told.context.threads, told.context.threads_batch) == (3 << 30, 5, 7)


def test_the_names_that_llama_server_has() -> None:
    values = parse(
        *("m.gguf", "-c", "131072", "-ngl", "99", "-sm", "row", "-ts", "3,1", "-mg", "1", "-fa", "on"),
        *("-ctk", "q8_0", "-ctv", "q4_0", "-b", "512", "-ub", "256", "-np", "2", "-a", "name", "--no-mmap", "--mlock"),
        *("--lora", "a.gguf", "--lora", "b.gguf:0.5", "--rope-scaling", "yarn", "-nkvo"),
        *("-dev", "CUDA0,CUDA1", "-ot", r"\.1\.=CUDA0,a=CPU", "-ot", "b=CPU", "-cmoe", "-ncmoe", "3", "-ncffn", "2"),
        *("--lora-scaled", "c.gguf:2,d.gguf:3", "--override-kv", "k=int:1", "--override-kv", "l=bool:true"),
        *("-nr", "--no-host", "--check-tensors", "--no-op-offload", "--rope-scale", "4"),
    )
    assert build(ModelConfig, values) == ModelConfig(
        model="m.gguf",
        gpu_layers=99,
        split_mode="row",
        tensor_split=(3.0, 1.0),
        main_gpu=1,
        mmap=False,
        mlock=True,
        devices=("CUDA0", "CUDA1"),
        override_tensor=((r"\.1\.", "CUDA0"), ("a", "CPU"), ("b", "CPU")),
        cpu_moe=True,
        cpu_moe_layers=3,
        cpu_ffn_layers=2,
        lora=(("a.gguf", 1.0), ("b.gguf", 0.5), ("c.gguf", 2.0), ("d.gguf", 3.0)),
        override_metadata=(("k", 1), ("l", True)),
        repack=False,
        no_host=True,
        check_tensors=True,
    )
    assert build(ContextConfig, values) == ContextConfig(
        context_tokens=131072,
        batch_tokens=512,
        ubatch_tokens=256,
        flash_attention="on",
        type_k="q8_0",
        type_v="q4_0",
        offload_kqv=False,
        op_offload=False,
        rope_scaling="yarn",
        rope_scale=4.0,
    )


def test_limits_reach_the_server() -> None:
    server = build(
        ServerConfig, parse("--max-tools", "3", "--max-body-bytes", "1m", "--api-key", "a", "--api-key", "b")
    )
    assert server.api_keys == ("a", "b")
    assert server.limits == dataclasses.replace(Limits(), tools=3, body_bytes=1 << 20)


@pytest.mark.parametrize(
    "option", [option for option in SETTINGS if isinstance(option.type, click.IntRange)], ids=lambda o: o.name
)
def test_a_number_outside_its_limits_names_flag_and_limit(option: click.Option) -> None:
    limits = option.type
    assert isinstance(limits, click.IntRange)
    outside = int(limits.min) - 1 if limits.min is not None else int(limits.max or 0) + 1
    code, output = run("serve", option.opts[0], str(outside))
    assert code == 2
    assert option.opts[0] in output
    assert str(outside + 1) in output


@pytest.mark.parametrize(
    "option",
    [option for option in SETTINGS if isinstance(option.type, click.types.FloatParamType)],
    ids=lambda o: o.name,
)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_none_names_the_flag(option: click.Option, text: str) -> None:
    code, output = run("serve", f"{option.opts[0]}={text}")
    assert code == 2
    assert option.opts[0] in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("serve", "--gpu-layer", "3"), "No such option: --gpu-layer; did you mean --gpu-layers?"),
        (("serve", "--cache_ram=1g"), "No such option: --cache_ram; did you mean --cache-ram?"),
        (("serve", "-nlg", "3"), "No such option: -nlg; did you mean -ngl?"),
        (("demo", "--jsn"), "No such option: --jsn; did you mean --json?"),
        (("srve",), "No such command: srve; did you mean serve?"),
        (("serve", "--flash-attn", "yes"), "'on', 'off', 'auto'"),
        (("serve", "--cache-ram", "4k"), "4k is not in the range 1MiB to 16TiB"),
        (("serve", "--port"), "requires an argument"),
        (("serve", "--port", "abc"), "'abc' is not a valid integer."),
        (("serve", "--rope-freq-base", "abc"), "'abc' is not a valid number."),
        (("replay", "trace.jsonl", "--limit", "abc"), "'abc' is not a valid integer."),
        (("replay",), "TRACE"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(arguments: tuple[str, ...], expected: str) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert expected in output


@pytest.mark.parametrize("arguments", [("serve", "--nope"), ("cache", "foo")])
def test_nothing_is_suggested_that_looks_otherwise(arguments: tuple[str, ...]) -> None:
    code, output = run(*arguments)
    assert code == 2
    assert f": {arguments[-1]}" in output
    assert "did you mean" not in output


def test_sequences_follow_the_engine() -> None:
    assert sequences_for(EngineConfig(parallel=3, resident_idle=2)) == 5
    assert sequences_for(EngineConfig(parallel=3, resident_idle=2, cache=False)) == 3
    assert sequences_for(EngineConfig(parallel=3, exact=True)) == 1


def test_a_config_checks_itself_too() -> None:
    with pytest.raises(ConfigError, match="--parallel must lie between 1 and 250, not 0"):
        EngineConfig(parallel=0).validate()


@pytest.mark.parametrize("flag", ["--float-volatile", "--pin-date"])
def test_exact_prompts_depend_on_nothing_that_was_asked_before(flag: str) -> None:
    code, output = run("serve", "test:llama", "--port", "0", "--exact", flag)
    assert code == 2
    assert flag in output
    assert "--exact" in output


@pytest.mark.parametrize("flag", ["--api-key", "--host", "--alias", "--chat-template", "--allowed-host"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_text_that_is_empty_is_refused_by_its_flag(flag: str, value: str) -> None:
    code, output = run("serve", "test:llama", "--port", "0", "--api-key", "right", flag, value)
    assert code == 2
    assert f"{flag} must not be empty" in output


@pytest.mark.parametrize("key", ["two words", "key\n", "\tkey", "key\xa0"])
def test_a_key_with_white_space_is_refused(key: str) -> None:
    code, output = run("serve", "test:llama", "--port", "0", "--api-key", key)
    assert code == 2
    assert "--api-key must not hold white space" in output


def test_a_field_of_an_unknown_type_is_a_programming_error() -> None:
    @dataclasses.dataclass
    class Odd:
        thing: bytes = dataclasses.field(
            default=b"", metadata=dict(dataclasses.fields(EngineConfig)[0].metadata) | {"minimum": None}
        )

    with pytest.raises(TypeError, match="thing"):
        options_of(Odd, section="Odd")


def test_a_cache_larger_than_the_ram_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(cache_ram_bytes=3 << 30)
    warn_of_large_cache(config, ram_bytes=3 << 30)
    warn_of_large_cache(config, ram_bytes=None)
    warn_of_large_cache(dataclasses.replace(config, cache=False), ram_bytes=1 << 30)
    assert not caplog.records
    warn_of_large_cache(config, ram_bytes=2 << 30)
    assert "--cache-ram 3GiB is more than the 2GiB of RAM" in caplog.text
