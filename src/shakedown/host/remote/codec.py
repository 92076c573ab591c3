"""The nouns of the host as JSON and back, exactly: tuples stay tuples, paths paths, bytes bytes.

It makes no class that is not in its table: what comes from another machine is data.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from shakedown.core import launches, readings
from shakedown.host import felling, foreign, procfs, survey


def _nouns(*modules: ModuleType) -> dict[str, type]:
    """Their dataclasses and named tuples, by name."""
    found = {}
    for module in modules:
        for name, it in vars(module).items():
            if isinstance(it, type) and (is_dataclass(it) or (issubclass(it, tuple) and it is not tuple)):
                found[name] = it
    return found


NOUNS = _nouns(launches, readings, felling, foreign, procfs, survey)


def encode(thing: Any) -> bytes:
    return json.dumps(_plain(thing), separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """Raises ValueError for what this version did not write."""
    try:
        return _noun(json.loads(text))
    except (KeyError, TypeError, AttributeError, binascii.Error) as problem:
        raise ValueError(f"not in a form that is known here: {problem}") from problem


def _plain(thing: Any) -> Any:
    match thing:
        case Enum():
            return thing.value
        case None | bool() | int() | float() | str():
            return thing
        case Path():
            return {"path": str(thing)}
        case bytes():
            return {"bytes": base64.b64encode(thing).decode()}
        case list():
            return [_plain(it) for it in thing]
        case set() | frozenset():
            return {"set": [_plain(it) for it in thing]}
        case Mapping():
            return {"map": [[_plain(key), _plain(value)] for key, value in thing.items()]}
    name = type(thing).__name__
    if NOUNS.get(name) is type(thing):
        if isinstance(thing, tuple):
            return {"noun": name, "of": [_plain(it) for it in thing]}
        names = [it.name for it in fields(NOUNS[name])]
        return {"noun": name, "of": {each: _plain(getattr(thing, each)) for each in names}}
    if type(thing) is tuple:
        return {"tuple": [_plain(it) for it in thing]}
    raise TypeError(f"a {name} does not travel")


def _noun(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_noun(it) for it in plain]
    if not isinstance(plain, dict):
        return plain
    if "noun" in plain:
        cls, values = NOUNS[plain["noun"]], plain["of"]
        if isinstance(values, dict):
            return cls(**{name: _noun(value) for name, value in values.items()})
        return cls(*(_noun(value) for value in values))
    ((kind, value),) = plain.items()
    match kind:
        case "tuple":
            return tuple(_noun(it) for it in value)
        case "path":
            return Path(value)
        case "bytes":
            return base64.b64decode(value)
        case "set":
            return frozenset(_noun(it) for it in value)
        case "map":
            return {_noun(key): _noun(each) for key, each in value}
    raise ValueError(f"nothing is called {kind!r}")
