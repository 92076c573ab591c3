"""Starts one of the misbehaving servers and hands out where it is."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shakedown.core import LogprobStyle
from shakedown.probe import Target

SERVERS = Path(__file__).parent / "bad_servers"


@contextlib.contextmanager
def serving(program: str, *arguments: str, **fields: object) -> Iterator[Target]:
    command = [sys.executable, str(SERVERS / program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            target = Target(
                base_url=f"http://127.0.0.1:{int(server.stdout.readline())}",
                model=None,
                api_key=None,
                logprobs=LogprobStyle.PROMPT_LOGPROBS,
                health_path="/health",
                engine="vllm",
            )
            yield replace(target, **fields)  # type: ignore[arg-type]
        finally:
            server.kill()
