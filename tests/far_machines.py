"""Other machines on this one: an sshd of our own on loopback, and a container that is a new environment."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shakedown.host.reach import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """An sshd that lets in one key. `ssh` is a folder with a program of that name that reads our config."""

    folder: Path
    port: int
    server: subprocess.Popen[bytes]
    state: Path  # TMPDIR of what runs there: nothing may be left in it

    @property
    def env(self) -> dict[str, str]:
        """Finds our ssh first; its user's own configuration is `config`."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def left(self) -> list[str]:
        return sorted(path.name for path in self.state.iterdir())


@contextmanager
def sshd(folder: Path) -> Iterator[Box]:
    """Its host key is known under `box`; `stranger` is the same machine, not known yet."""
    assert SSHD is not None, "no sshd: apt-get install openssh-server"
    folder.chmod(0o700)
    state = folder / "state"
    state.mkdir()
    port = free_port()
    for name in ("host_key", "user_key", "wrong_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(folder / "user_key.pub", folder / "authorized")
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known").write_text(f"box {host_key}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host_key'}\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"MaxStartups 100\nSetEnv TMPDIR={state} HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\n"
    )
    common = (
        f"  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder / 'known'}\n  GlobalKnownHostsFile /dev/null\n"
    )
    key = f"  IdentityFile {folder / 'user_key'}\n"
    (folder / "config").write_text(
        f"Host box\n{common}{key}  HostKeyAlias box\n"
        f"Host stranger\n{common}{key}  HostKeyAlias stranger\n"
        f"Host locked\n{common}  IdentityFile {folder / 'wrong_key'}\n  HostKeyAlias box\n"
        f"Host closed\n  HostName 127.0.0.1\n  Port 1\n"
    )
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "config"} "$@"\n')
    program.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it for its unprivileged half
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        until = time.monotonic() + 10
        while not _answers(port):
            assert server.poll() is None, (folder / "sshd.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield Box(folder=folder, port=port, server=server, state=state)
    finally:
        server.terminate()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def container(folder: Path, *, python: str = "", noise: str = "", variables: str = "") -> str:
    """Words that enter a fake container: `NAME exec -i C WORDS…` runs the words in an environment of its own.

    `python` is what is called python3 in there, "" for ours; `noise` is printed before the words run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "sleep", "env", "cat"):
        tool = shutil.which(name)
        assert tool
        (tools / name).symlink_to(tool)
    if python != "none":
        real = tools / "python3"
        if python:
            real.write_text(python)
            real.chmod(0o755)
        else:
            real.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} "$@"\n')
            real.chmod(0o755)
    program = folder / "docker"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1 $2 $3" = "exec -i C" ] || { echo "no such container: $3" >&2; exit 1; }\n'
        f"shift 3\n{f'echo {noise}' if noise else ':'}\n"
        f'exec env -i PATH={tools} HOME={folder} TMPDIR={folder / "tmp"} INSIDE=1 {variables} "$@"\n'
    )
    program.chmod(0o755)
    return f"{program} exec -i C"
