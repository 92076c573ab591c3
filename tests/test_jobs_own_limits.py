"""An engine's own timers: what a launch says of when it would give up by itself."""

import shlex
from pathlib import Path

import pytest

from shakedown.core import Launch, Phase
from shakedown.engines import parse
from shakedown.jobs.reading import own_limits


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve M", {}),
        ("env VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=20 vllm serve M", {Phase.SERVING: 20.0}),
        ("vllm serve M --distributed-timeout-seconds 30", {Phase.DIST_INIT: 30.0}),
        ("vllm serve M --distributed-timeout-seconds 7200", {}),  # not worth waiting for
        ("vllm serve M --distributed-timeout-seconds soon", {}),
        ("sglang serve --model-path M --dist-timeout 45", {Phase.DIST_INIT: 45.0}),
        ("sglang serve --model-path M --distributed-timeout-seconds 30", {}),
    ],
)
def test_only_timers_that_the_engine_knows_and_the_user_set_short(command, expected):
    launch = Launch(argv=tuple(shlex.split(command)), env={}, cwd=Path("."))
    assert own_limits(parse(launch, None)) == expected
