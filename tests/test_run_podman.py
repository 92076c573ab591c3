"""A real container engine, where podman runs as root: an image of empty folders, our Python mounted in."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from stand_ins import STAND_IN, eventually, running

from shakedown.host.reach import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# crun refuses a machine of both cgroup versions: there the newer one is hidden from it and from nobody else.
HIDING = ("unshare", "--mount", "sh", "-c", 'umount /sys/fs/cgroup/unified && exec "$@"', "sh")
PLAIN_CONF = '[containers]\ndefault_ulimits = []\ncgroups = "disabled"\n'  # fewer rights than podman expects


@dataclass(frozen=True, slots=True, kw_only=True)
class Podman:
    """A podman with a store of its own. `before` is what any command of it needs in front."""

    before: tuple[str, ...]
    client: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [*self.before, *self.client, *words]
        return subprocess.run(argv, env=dict(self.env), capture_output=True, text=True, timeout=60)

    def server(self, name: str, port: int, *options: str) -> tuple[str, ...]:
        """Its first process would ignore TERM: KILL is how this image is stopped."""
        places = {"/usr", sys.prefix, sys.base_prefix, str(STAND_IN.parent)}
        mounts = [f"--volume={place}:{place}:ro" for place in sorted(places)]
        program = (sys.executable, str(STAND_IN), "--model", name, "--port", str(port))
        run = ("run", "-d", "--network", "host", "--stop-signal=KILL", *mounts, *options, "an/image")
        return (*self.client, *run, *program)

    def shakedown(self, *launch: str) -> subprocess.Popen[str]:
        words = ("run", "--json", "--ledger", str(self.folder / "ledger.db"), "--", *launch)
        return subprocess.Popen(
            [*self.before, sys.executable, "-m", "shakedown", *words],
            env=dict(self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def containers(self) -> list[str]:
        return self("ps", "--all", "--quiet").stdout.split()


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    if os.geteuid() or not shutil.which("podman"):
        pytest.skip("podman as root is wanted")
    conf, image = tmp_path / "containers.conf", image_in(tmp_path)
    conf.write_text(PLAIN_CONF)
    env = {**os.environ, "CONTAINERS_CONF": str(conf)}
    with tempfile.TemporaryDirectory(prefix="pod-") as short:  # its sockets' names may have 108 bytes
        store = ("--root", f"{short}/store", "--runroot", f"{short}/run", "--storage-driver", "vfs")
        for before in ((), HIDING):
            found = Podman(before=before, client=("podman", *store), env=env, folder=tmp_path)
            found("import", str(image), "an/image")
            if not found("run", "--rm", "--volume=/usr:/usr:ro", "an/image", "true").returncode:
                break
        else:
            pytest.skip("podman does not run containers here")
        yield found
        for each in found.containers():
            found("rm", "--force", "--time", "0", each)


def image_in(folder: Path) -> Path:
    image = folder / "image.tar"
    with tarfile.open(image, "w") as tar:
        for name in ("usr", "tmp", "etc", "proc", "sys", "dev", "run"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry, io.BytesIO())
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return image


@pytest.fixture
def bystander(podman: Podman) -> Iterator[str]:
    """A container of the same image, command and user; the user's own."""
    started = podman(*podman.server("podman-bystander", free_port())[len(podman.client) :])
    assert started.returncode == 0, started.stderr
    own = started.stdout.strip()[:12]
    yield own
    assert podman.containers() == [own]
    assert eventually(lambda: len(running("podman-bystander")) == 2, within_s=5)


def test_a_container_serves_is_seen_through_and_is_gone(podman: Podman, bystander: str) -> None:
    tool = podman.shakedown(*podman.server("podman-serves", free_port(), "-e", "VLLM_X=1"))
    document = json.loads(tool.communicate(timeout=90)[0])
    assert document["verdict"] == "serves", document
    assert not running("podman-serves")


def test_a_kill_of_our_tool_ends_the_container(podman: Podman, bystander: str) -> None:
    command = podman.server("podman-killed", free_port(), "-e", "STAND_IN_LOAD_S=60", "--name", "mine")
    tool = podman.shakedown(*command)
    assert eventually(lambda: len(running("podman-killed")) == 2, within_s=60)
    tool.kill()
    tool.communicate()
    assert eventually(lambda: not running("podman-killed"), within_s=20)
    assert eventually(lambda: podman.containers() == [bystander], within_s=20)
