"""How a server's arguments read: as argparse and vLLM's extension of it would, with every token's position.

It judges no value: what the engine would refuse is read all the same.
"""

from __future__ import annotations

import re

from shakedown.core import Engine, Flag, FlagTable, FlagUse, Values

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_POSITIONAL_MODEL = frozenset({"vllm", "transformers"})


def read_arguments(
    argv: tuple[str, ...], at: int, table: FlagTable | None, engine: Engine
) -> tuple[FlagUse, ...]:
    """All flags from position `at` on; a model given as a plain word is a use without a spelling."""
    return _Reader(argv=argv, table=table).read(at, engine)


class _Reader:
    """Reads arguments as argparse (and vLLM's extension of it) does."""

    def __init__(self, *, argv: tuple[str, ...], table: FlagTable | None) -> None:
        self._argv = argv
        self._flags: dict[str, Flag] = {}
        for flag in table.flags if table else ():
            for name in flag.names:
                self._flags[name] = flag

    def read(self, at: int, engine: Engine) -> tuple[FlagUse, ...]:
        uses: list[FlagUse] = []
        named_model = False
        while at < len(self._argv):
            token = self._argv[at]
            if token == "--":
                break
            if not self._is_flag(token):
                if engine.name in _POSITIONAL_MODEL and not named_model:
                    uses.append(_positional_model(engine, token, at))
                    named_model = True
                at += 1
                continue
            use = self._read_flag(at)
            uses.append(use)
            at = use.positions[-1] + 1
        return tuple(uses)

    def _is_flag(self, token: str) -> bool:
        if not token.startswith("-") or len(token) == 1 or _NUMBER.match(token):
            return False
        return " " not in token or "=" in token

    def _read_flag(self, at: int) -> FlagUse:
        spelled, equals, inline = self._argv[at].partition("=")
        head, dot, _ = spelled.partition(".")
        if head.startswith("-O") and head not in self._flags and "--optimization-level" in self._flags:
            # vLLM: -O3 and -O.cudagraph_mode=NONE, the number in the same token.
            glued = head[2:]
            head = "--compilation-config" if dot else "--optimization-level"
            equals, inline = ("=", glued) if glued else (equals, inline)
        flag = self._look_up(head)
        values = (inline,) if equals else self._following(at + 1, flag, dotted=bool(dot))
        return FlagUse(
            name=flag.names[0] if flag else _normalised(head),
            spelled=spelled,
            values=values,
            positions=(at,) if equals else tuple(range(at, at + 1 + len(values))),
            known=flag is not None,
        )

    def _look_up(self, name: str) -> Flag | None:
        name = _normalised(name)
        if name in self._flags:
            return self._flags[name]
        if not name.startswith("--"):
            return None
        found = {
            self._flags[other].names: self._flags[other] for other in self._flags if other.startswith(name)
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def _following(self, at: int, flag: Flag | None, *, dotted: bool) -> tuple[str, ...]:
        most = 1
        if flag is not None and not dotted:
            most = {Values.NONE: 0, Values.MANY: len(self._argv)}.get(flag.values, 1)
        found: list[str] = []
        while at < len(self._argv) and len(found) < most and not self._is_flag(self._argv[at]):
            found.append(self._argv[at])
            at += 1
        return tuple(found)


def _normalised(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _positional_model(engine: Engine, token: str, at: int) -> FlagUse:
    return FlagUse(name=engine.model_flags[0], spelled="", values=(token,), positions=(at,), known=True)
