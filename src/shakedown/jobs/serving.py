"""A server that something is done with: one that is up, or a command started for it and ended after.

It never leaves running what it started: a kill of ours ends the server too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from shakedown.core import LogprobStyle
from shakedown.errors import EnvironmentProblem, ShakedownError, UsageError
from shakedown.host import reach
from shakedown.host.local import LocalHost
from shakedown.jobs.reading import KEY_VARIABLES, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.run import watch
from shakedown.jobs.running import read_url
from shakedown.probe import Target
from shakedown.probe.ready import ReadyState, poll
from shakedown.report import run_summary
from shakedown.report.again import ours

T = TypeVar("T")
LOOK_S = 10.0


def with_server(url: str | None, request: LaunchRequest, talk: Talk, work: Callable[[Target], T]) -> T:
    """`work` at the server of `url`, or at the one that the request's command starts.

    Raises UsageError where both or none is given, EnvironmentProblem where none answers.
    """
    if (url is None) == (not request.launch.argv):
        raise UsageError(
            "say where the target is served: --server URL, or after -- the command that starts it",
            "as in: shakedown draft synth --target M --out DIR -- vllm serve M",
        )
    return work(running_server(url)) if url is not None else while_serving(request, talk, work)


def running_server(url: str) -> Target:
    """The server at a URL, under the name it gives its model. Raises UsageError, EnvironmentProblem."""
    key = next(
        (os.environ[name] for name in (*KEY_VARIABLES, "OPENAI_API_KEY") if os.environ.get(name)), None
    )
    base = url.rstrip("/").removesuffix("/v1")
    target = Target(
        base_url=base,
        model=None,
        api_key=key,
        logprobs=LogprobStyle.NONE,
        health_path="/health",
        engine="generic",
        by_proxy=not reach.is_local(read_url(url).hostname or ""),
    )
    return named(target)


def named(target: Target) -> Target:
    """Raises EnvironmentProblem where nobody answers."""
    seen = poll(target, LOOK_S)
    if seen.state is not ReadyState.ANSWERING:
        raise EnvironmentProblem(f"the server at {target.base_url} does not answer: {seen.why}")
    return replace(target, model=seen.model or target.model)


def while_serving(request: LaunchRequest, talk: Talk, work: Callable[[Target], T]) -> T:
    """Launches the command as `run` does, works while it serves, ends it. Raises EnvironmentProblem."""
    host = LocalHost()
    reading = read_request(request, host, talk, live=False)
    target = reading.target
    if target is None:
        raise UsageError("it is not clear where this command will answer", "say it with --port")
    done: list[T] = []
    problems: list[ShakedownError] = []

    def at_work() -> None:
        try:
            done.append(work(named(target)))
        except ShakedownError as problem:  # of the work, not of the launch
            problems.append(problem)

    record = watch(reading, request, talk, host, keep=False, work=at_work)
    if problems:
        raise problems[0]
    if not done:
        summary = [line for line in run_summary(record) if line.strip()]
        cause = record.judgement.cause if record.judgement is not None else ""
        raise EnvironmentProblem(
            f"the command does not serve, so nothing was asked: {summary[0]}{f': {cause}' if cause else ''}",
            f"see more with: {ours('show', record.id, dict(record.facts))}",
        )
    return done[0]
