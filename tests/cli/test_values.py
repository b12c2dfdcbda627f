"""How values are spelled on the command line."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cli.values import (
    AdapterType,
    GpuLayersType,
    SizeType,
    TensorSplitType,
    format_size,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GiB", 8 << 30),
        ("512MiB", 512 << 20),
        ("4g", 4 << 30),
        ("1.5G", 3 << 29),
        ("64 kb", 64 << 10),
        ("1TB", 1 << 40),
        ("123", 123),
        ("7B", 7),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1e9", "4 gigs", "1GiBB", "0x10", "1.G", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_nearly_the_same(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == pytest.approx(nbytes, rel=0.06)


def convert(kind: click.ParamType[Any], text: str) -> Any:
    return kind.convert(text, None, None)


def test_a_size_outside_its_limits_names_them() -> None:
    kind = SizeType(minimum_bytes=1 << 20, maximum_bytes=1 << 30)
    assert convert(kind, "1MiB") == 1 << 20
    for text in ("1023KiB", "1.1GiB"):
        with pytest.raises(click.BadParameter, match="1MiB to 1GiB"):
            convert(kind, text)


@pytest.mark.parametrize(("text", "layers"), [("all", -1), ("AUTO", -1), ("-1", -1), ("0", 0), ("99", 99)])
def test_gpu_layers(text: str, layers: int) -> None:
    assert convert(GpuLayersType(), text) == layers


@pytest.mark.parametrize("text", ["some", "-2", "1.5", ""])
def test_bad_gpu_layers(text: str) -> None:
    with pytest.raises(click.BadParameter, match="'all' or 'auto'"):
        convert(GpuLayersType(), text)


def test_tensor_split() -> None:
    assert convert(TensorSplitType(), "3,1") == (3.0, 1.0)
    assert convert(TensorSplitType(), "1") == (1.0,)
    for text in ("3,,1", "a", "", "-1,2", "nan,1", "inf,1", "0,0"):
        with pytest.raises(click.BadParameter, match="share"):
            convert(TensorSplitType(), text)


@pytest.mark.parametrize(
    ("text", "adapter"),
    [
        ("a.gguf", ("a.gguf", 1.0)),
        ("a.gguf:0.5", ("a.gguf", 0.5)),
        ("dir:x/a.gguf", ("dir:x/a.gguf", 1.0)),
        ("dir:x/a.gguf:-2", ("dir:x/a.gguf", -2.0)),
    ],
)
def test_adapters(text: str, adapter: tuple[str, float]) -> None:
    assert convert(AdapterType(), text) == adapter


@pytest.mark.parametrize("text", [":1", "a:nan", "a:inf"])
def test_bad_adapters(text: str) -> None:
    with pytest.raises(click.BadParameter, match="PATH:SCALE"):
        convert(AdapterType(), text)
