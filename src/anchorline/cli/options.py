"""Command-line options made from the fields of ``config``, and configs made from their values."""

from __future__ import annotations

import types
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import chain
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

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
)
from anchorline.numbers import FiniteFloatType, FiniteRangeType, IntegerRangeType

Config = TypeVar("Config")

MACHINE_DEFAULTS = {
    "cache_ram_bytes": "a quarter of the free RAM",
    "pin_budget_bytes": "50%",
    "cache_disk": "anchorline in the user's cache directory; off with a test:ARCH model",
    "cache_disk_bytes": "20GiB, or a tenth of the free space",
}
"""Settings whose default depends on the machine, or on another; their option is None until ``cli`` resolves it."""

SPECIAL_TYPES: dict[str, click.ParamType[Any]] = {
    "gpu_layers": GpuLayersType(),
    "tensor_split": TensorSplitType(),
    "devices": DeviceListType(),
    "override_tensor": TensorOverrideType(),
    "override_metadata": MetadataOverrideType(),
    "lora": AdapterType(),
    "pin_budget_bytes": SizeOrShareType(maximum_bytes=1 << 44),
}
ONE_LIST = frozenset({"tensor_split", "devices"})
"""Settings that are one list; given twice, the last holds."""
JOINED_LISTS = frozenset({"override_tensor", "override_metadata", "lora"})
"""Settings that are lists which add up when given more than once."""
METAVARS = {
    "api_keys": "KEY",
    "share_heads": "DIGEST",
    "warm": "FILE",
    "script": "FILE",
    "cache_disk": "DIR",
    "models_directory": "DIR",
}
"""What the help calls the value of a text that no type names."""
SPELLED_DEFAULTS: dict[str, Any] = {"gpu_layers": "auto"}


class SettingOption(click.Option):
    """An option that knows under which heading the help shows it; a size is shown with its range, as numbers are."""

    def __init__(self, *declarations: str, section: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, SizeType):
            extra["range"] = self.type.range
        return extra


def options_of(config: type, *, section: str) -> list[SettingOption]:
    """One option for each setting of ``config`` and of the configs inside it; parameter name = field name."""
    hints = get_type_hints(config)
    options = []
    for declared in fields(config):
        if "flag" in declared.metadata:
            options.append(_option(declared, hints[declared.name], section))
        elif is_dataclass(hints[declared.name]):
            options.extend(options_of(hints[declared.name], section="Limits"))
    return options


def build(config: type[Config], values: dict[str, Any]) -> Config:
    """A ``config`` from parsed options; a field without one keeps its default."""
    hints = get_type_hints(config)
    arguments: dict[str, Any] = {}
    for declared in fields(config):  # type: ignore[arg-type]
        if "flag" in declared.metadata or declared.name in values:
            arguments[declared.name] = values[declared.name]
        elif is_dataclass(hints[declared.name]):
            arguments[declared.name] = build(hints[declared.name], values)
    return config(**arguments)


def _option(declared: Field[Any], hint: Any, section: str) -> SettingOption:
    meta = declared.metadata
    default = declared.default if declared.default is not MISSING else None
    attributes: dict[str, Any] = {"help": meta["help"], "section": section, "show_default": True, "default": default}
    many = get_origin(hint) is tuple and declared.name not in ONE_LIST
    if hint is bool:
        attributes["is_flag"] = True
        attributes["show_default"] = "/" in meta["flag"]
    else:
        attributes["type"] = SPECIAL_TYPES.get(declared.name) or _value_type(declared, hint, many=many)
        if hint in (int, float) and declared.name not in SPECIAL_TYPES and not declared.name.endswith("_bytes"):
            attributes["metavar"] = "N"
        elif declared.name in METAVARS:
            attributes["metavar"] = METAVARS[declared.name]
    if many:
        attributes["multiple"] = True
    if declared.name in MACHINE_DEFAULTS:
        attributes |= {"default": None, "show_default": MACHINE_DEFAULTS[declared.name]}
    elif isinstance(attributes.get("type"), SizeType):
        attributes["show_default"] = format_size(int(default or 0))
    elif default is None or default == ():
        attributes["show_default"] = False
    if declared.name in ONE_LIST:
        attributes["default"] = None
        attributes["callback"] = lambda ctx, param, value: value or ()
    elif declared.name in JOINED_LISTS:
        attributes["callback"] = lambda ctx, param, values: tuple(chain.from_iterable(values))
    if declared.name in SPELLED_DEFAULTS:
        attributes["default"] = SPELLED_DEFAULTS[declared.name]
    return SettingOption(declared.name, meta["flag"], *meta["aliases"], **attributes)


def _value_type(declared: Field[Any], hint: Any, *, many: bool) -> click.ParamType[Any]:
    meta = declared.metadata
    base = get_args(hint)[0] if many or get_origin(hint) is types.UnionType else hint
    if meta["choices"]:
        return click.Choice(meta["choices"])
    if base is int and declared.name.endswith("_bytes"):
        return SizeType(minimum_bytes=meta["minimum"], maximum_bytes=meta["maximum"])
    limited = meta["minimum"] is not None or meta["maximum"] is not None
    if base is int:
        return IntegerRangeType(min=meta["minimum"], max=meta["maximum"]) if limited else click.INT
    if base is float:
        return FiniteRangeType(min=meta["minimum"], max=meta["maximum"]) if limited else FiniteFloatType()
    if base is str:
        return click.STRING
    raise TypeError(f"no option type for {declared.name}: {hint}")
