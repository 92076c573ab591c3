"""Options that several commands share, and how their values are read.

It never runs anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from shakedown.core import Expectation

F = TypeVar("F", bound=Callable[..., Any])

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Number(click.FloatRange):
    """A number within a range: nan, which is neither below nor above anything, is none; nor is infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """`90`, `90s`, `10m`, `2h` in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if not match or float(match[1]) == 0:
            self.fail(f"{value!r} is not a duration; write 90s, 10m or 2h", param, ctx)
        return float(match[1]) * UNIT_SECONDS[match[2] or "s"]


class Expression(click.ParamType[str]):
    """A regular expression, told at once where it is none."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as problem:
            self.fail(f"{value!r} is not a regular expression: {problem}", param, ctx)
        return str(value)


class Url(click.ParamType[str]):
    """`http://127.0.0.1:8000/health`: with a scheme, a host and a port that exists."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or re.search(r"\s", value):
            self.fail(f"{value!r} is not a URL; write http://127.0.0.1:8000/health", param, ctx)
        return str(value)


class Stated(click.ParamType[Expectation]):
    """`tokens_per_s >= 400`."""

    name = "mark"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Expectation:
        try:
            return Expectation.read(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def apply_all(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
ledger_option = click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use this ledger instead of the one in your state folder.",
)

engine_option = click.option(
    "--engine",
    type=click.Choice(["vllm", "sglang", "transformers", "generic"]),
    help="Say which engine it is, where the command does not tell.",
)
machine_options = apply_all(
    click.option("--host", metavar="USER@BOX", help="Do it on another machine, by your own ssh."),
    click.option("--via", metavar="WORDS", help="Or by words that give a shell there: 'docker exec -i C'."),
)


def launching(deadline_help: str) -> Callable[[F], F]:
    """How a launch is told apart, reached and ended."""
    return apply_all(
        engine_option,
        machine_options,
        click.option("--port", type=click.IntRange(1, 65535), help="Port it will listen on, where unclear."),
        click.option("--ready-url", type=Url(), help="Any server: it is ready when this URL answers 2xx."),
        click.option(
            "--ready-log",
            type=Expression(),
            help="Any server: ready when a line matches this expression.",
        ),
        click.option("--deadline", type=Duration(), help=deadline_help),
        click.option("--dry-run", is_flag=True, help="Print what it would start and signal; start nothing."),
        ledger_option,
        json_option,
    )


launch_options = launching("End it after this long: 90s, 10m, 2h.")
server_options = launching("Give its server this long to start: 90s, 10m, 2h.")
expect_option = click.option(
    "--expect",
    type=Stated(),
    multiple=True,
    help="A mark it must meet: 'tokens_per_s >= 400', 'accept_length >= 2', 'ttft_ms <= 200' or"
    " 'ready_s <= 60'. May be given several times.",
)
nodes_option = click.option(
    "--launch",
    "nodes",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Launch the nodes of this file together, in place of one CMD.",
)
fleet_options = apply_all(
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Launch here one after the other, or several at once on a Ray cluster.",
    ),
    click.option("--workers", type=click.IntRange(1, 64), help="Launch so many at once; with ray 2."),
    click.option("--ray-address", metavar="HOST:PORT", help="A running cluster; else a local one is made."),
    click.option("--gpus-per-launch", type=click.IntRange(0), help="Left out: one for each rank."),
)
command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
