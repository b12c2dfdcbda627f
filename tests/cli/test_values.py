"""How values are spelled on the command line."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cli.values import (
    AdapterType,
    DeviceListType,
    GpuLayersType,
    MetadataOverrideType,
    SizeOrShareType,
    SizeType,
    TensorOverrideType,
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


@pytest.mark.parametrize(("text", "value"), [("30%", 0.3), ("0%", 0.0), ("100 %", 1.0), ("512MiB", 512 << 20)])
def test_a_size_or_a_percentage(text: str, value: int | float) -> None:
    assert convert(SizeOrShareType(maximum_bytes=1 << 30), text) == value


@pytest.mark.parametrize("text", ["101%", "-1%", "nan%", "%", "2GiB", "half"])
def test_what_is_neither_a_size_nor_a_percentage(text: str) -> None:
    with pytest.raises(click.BadParameter):
        convert(SizeOrShareType(maximum_bytes=1 << 30), text)


def test_a_size_outside_its_limits_names_them() -> None:
    kind = SizeType(minimum_bytes=1 << 20, maximum_bytes=1 << 30)
    assert convert(kind, "1MiB") == 1 << 20
    for text in ("1023KiB", "1.1GiB", "9" * 400, "9" * 5000 + "T"):
        with pytest.raises(click.BadParameter, match="1MiB to 1GiB"):
            convert(kind, text)


@pytest.mark.parametrize(("text", "layers"), [("all", -2), ("AUTO", -1), ("-1", -1), ("0", 0), ("99", 99)])
def test_gpu_layers(text: str, layers: int) -> None:
    assert convert(GpuLayersType(), text) == layers


@pytest.mark.parametrize("text", ["some", "-2", "1.5", "", "9" * 5000])
def test_bad_gpu_layers(text: str) -> None:
    with pytest.raises(click.BadParameter, match="'all' or 'auto'"):
        convert(GpuLayersType(), text)


def test_tensor_split() -> None:
    assert convert(TensorSplitType(), "3,1") == (3.0, 1.0)
    assert convert(TensorSplitType(), "1/2") == (1.0, 2.0)
    assert convert(TensorSplitType(), "1") == (1.0,)
    for text in ("3,,1", "a", "", "-1,2", "nan,1", "inf,1", "0,0"):
        with pytest.raises(click.BadParameter, match="share"):
            convert(TensorSplitType(), text)


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        ("a.gguf", (("a.gguf", 1.0),)),
        ("a.gguf:0.5", (("a.gguf", 0.5),)),
        ("dir:x/a.gguf", (("dir:x/a.gguf", 1.0),)),
        ("dir:x/a.gguf:-2", (("dir:x/a.gguf", -2.0),)),
        ("a.gguf:0.5,b.gguf", (("a.gguf", 0.5), ("b.gguf", 1.0))),
        ('"a,b.gguf:2",c.gguf', (("a,b.gguf", 2.0), ("c.gguf", 1.0))),
    ],
)
def test_adapters(text: str, adapters: tuple[tuple[str, float], ...]) -> None:
    assert convert(AdapterType(), text) == adapters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (":1", "PATH:SCALE"),
        ("a:nan", "PATH:SCALE"),
        ("a:inf", "PATH:SCALE"),
        ("", "empty parts"),
        ("a,,b", "empty parts"),
        ('"a', "comma-separated list"),
        ("a\nb", "comma-separated list"),
    ],
)
def test_bad_adapters(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        convert(AdapterType(), text)


def test_devices() -> None:
    assert convert(DeviceListType(), "CUDA1, CUDA0") == ("CUDA1", "CUDA0")
    assert convert(DeviceListType(), "none") == ("none",)
    for text in ("", "CUDA0,", " ,a"):
        with pytest.raises(click.BadParameter, match="like CUDA0,CUDA1"):
            convert(DeviceListType(), text)


def test_tensor_overrides() -> None:
    text = r"blk\.1\.=CUDA1,exps=CPU=x"
    assert convert(TensorOverrideType(), text) == ((r"blk\.1\.", "CUDA1"), ("exps", "CPU=x"))
    for text in ("exps", "=CPU", "exps=", "", "a{1,2}=CPU"):
        with pytest.raises(click.BadParameter, match="is not PATTERN=BUFFER"):
            convert(TensorOverrideType(), text)


def test_metadata_overrides() -> None:
    text = 'a.b=int:-3,c=float:1.5,d=bool:true,e=bool:false,f=str:x:y=z,"g=str:1,2",h=str:'
    assert convert(MetadataOverrideType(), text) == (
        *(("a.b", -3), ("c", 1.5), ("d", True), ("e", False)),
        *(("f", "x:y=z"), ("g", "1,2"), ("h", "")),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "KEY=TYPE:VALUE"),
        ("a=1", "KEY=TYPE:VALUE"),
        ("=int:1", "KEY=TYPE:VALUE"),
        ("a=u32:1", "with a type of int, float, bool, str"),
        ("a=int:1.5", "'1.5' is no int value"),
        ("a=float:x", "'x' is no float value"),
        ("a=float:nan", "'nan' is no float value"),
        ("a=float:-inf", "'-inf' is no float value"),
        ("a=float:1e999", "'1e999' is no float value"),
        ("a=int:" + "9" * 5000, "is no int value"),
        ("a=bool:True", "'True' is no bool value"),
        ("", "empty parts"),
    ],
)
def test_bad_metadata_overrides(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        convert(MetadataOverrideType(), text)
