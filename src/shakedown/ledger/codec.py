"""Nouns to JSON and back, exactly: frozen dataclasses, enums, tuples, frozensets, mappings and paths.

It knows no noun by name: the annotations of a dataclass are its format.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Undecodable(ValueError):
    """Text that is not the noun it should be; the message names the place."""


def to_text(value: object) -> str:
    """One line of ASCII: lone surrogates (undecodable bytes of an argument) survive as escapes."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"))


def from_text(wanted: type[T], text: str) -> T:
    """Raise `Undecodable` where `text` is no such noun."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Undecodable(f"{wanted.__name__}: not JSON: {error}") from error
    return cast(T, decode(wanted, data, wanted.__name__))


def encode(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((encode(item) for item in value), key=json.dumps)
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}")


def decode(wanted: Any, data: Any, where: str) -> Any:
    """`data` as `wanted`. A field that is not there takes its default, one unknown here is passed over:
    rows of an older or slightly newer Shakedown stay readable."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _decode_optional(wanted, data, where)
    if origin is not None:
        return _decode_container(origin, get_args(wanted), data, where)
    if is_dataclass(wanted):
        return _decode_dataclass(wanted, data, where)
    if issubclass(wanted, Enum):
        try:
            return wanted(data)
        except ValueError as error:
            raise Undecodable(f"{where}: {error}") from error
    if wanted is float and type(data) is int:
        return float(data)
    plain = str if issubclass(wanted, Path) else wanted
    if type(data) is not plain:
        raise Undecodable(f"{where}: {type(data).__name__} where {plain.__name__} belongs")
    return wanted(data) if issubclass(wanted, Path) else data


def _decode_optional(wanted: Any, data: Any, where: str) -> Any:
    choices = [choice for choice in get_args(wanted) if choice is not type(None)]
    if len(choices) != 1:
        raise TypeError(f"{where}: a union of several nouns has no JSON form")
    return None if data is None else decode(choices[0], data, where)


def _decode_container(origin: Any, args: tuple[Any, ...], data: Any, where: str) -> Any:
    if issubclass(origin, Mapping):
        members = _as(dict, data, where).items()
        return {decode(args[0], key, where): decode(args[1], item, f"{where}.{key}") for key, item in members}
    items = _as(list, data, where)
    if origin is tuple and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise Undecodable(f"{where}: {len(items)} items where {len(args)} belong")
        return tuple(decode(args[at], item, f"{where}[{at}]") for at, item in enumerate(items))
    return origin(decode(args[0], item, f"{where}[{at}]") for at, item in enumerate(items))


def _decode_dataclass(wanted: Any, data: Any, where: str) -> Any:
    given = _as(dict, data, where)
    values = {}
    for name, (annotation, optional) in _format(wanted).items():
        if name in given:
            values[name] = decode(annotation, given[name], f"{where}.{name}")
        elif not optional:
            raise Undecodable(f"{where}: {name} is missing")
    return cast(Callable[..., Any], wanted)(**values)


@cache
def _format(wanted: type) -> Mapping[str, tuple[Any, bool]]:
    hints = get_type_hints(wanted)
    return {
        field.name: (hints[field.name], (field.default, field.default_factory) != (MISSING, MISSING))
        for field in fields(wanted)
    }


def _as(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, kind):
        raise Undecodable(f"{where}: {type(data).__name__} where {kind.__name__} belongs")
    return data
