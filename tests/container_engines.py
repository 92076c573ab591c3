"""What tests of containers share: an engine that runs none, and its client first on the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from host_runs import BAD_SERVERS, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running daemon, and `docker` first on the PATH of `env`."""

    place: Path
    env: Mapping[str, str]

    def asked(self, verb: str) -> list[str]:
        """The last word of every such request: the container it names."""
        lines = Path(f"{self.place}.asked").read_text().splitlines()
        return [line.split()[-1] for line in lines if line.split()[0] == verb]


@contextmanager
def fake_docker(folder: Path, *flags: str) -> Iterator[Engine]:
    fake = BAD_SERVERS / "fake_docker.py"
    client = folder / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$@"\n')
    client.chmod(0o755)
    place = folder / "engine"
    daemon = subprocess.Popen([sys.executable, str(fake), "daemon", str(place), *flags])
    try:
        wait_for(place.exists)
        path = f"{client.parent}:{os.environ['PATH']}"
        yield Engine(place=place, env={**os.environ, "PATH": path, "FAKE_DOCKER": str(place)})
    finally:
        daemon.kill()
        daemon.wait()
