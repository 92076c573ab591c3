"""Why a connection does not come about, in words, with ways out.

It opens nothing: it reads what the connection's program said.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum

from shakedown.errors import HostProblem
from shakedown.host.remote.parcel import OLDEST
from shakedown.redact import strip_controls

_MOST_SAID = 300


class Ending(Enum):
    EXITED = "exited"
    SILENT = "silent"
    NOISE = "noise"
    NO_PYTHON = "no python"
    OLD_PYTHON = "old python"


# (what ssh says, what it means, ways out)
_SSH = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "{host} shows another host key than the one you know",
        ("if it was installed anew: ssh-keygen -R HOST, then ssh {host} once; else somebody is in between",),
    ),
    (
        "Host key verification failed",
        "the host key of {host} is not known here",
        ("connect once by hand, look at the fingerprint and accept it: ssh {host}",),
    ),
    (
        "Permission denied",
        "{host} refuses your key",
        (
            "this must work without a question: ssh -o BatchMode=yes {host} true",
            "ssh-add, or User and IdentityFile in ~/.ssh/config",
        ),
    ),
    (
        "Could not resolve hostname",
        "there is no host {host}",
        ("check the name, or give it a Host entry in ~/.ssh/config",),
    ),
    (
        "Connection refused",
        "nothing takes ssh connections on {host}",
        ("Port in ~/.ssh/config, or ssh://USER@HOST:PORT, if it listens elsewhere",),
    ),
    ("timed out", "{host} does not answer", ("is it up, and is a VPN or a jump host (ProxyJump) needed?",)),
    (
        "No route to host",
        "{host} cannot be reached from here",
        ("is a VPN or a jump host (ProxyJump) needed?",),
    ),
)


def why_not(words: Sequence[str], ending: Ending, code: int | None, said: str, heard: bytes) -> HostProblem:
    """`said` on standard error, `heard` on standard output before our agent spoke."""
    shown = shlex.join(words[:-1])
    host = words[-2] if words[0] == "ssh" and len(words) > 2 else ""
    said = _short(said)
    where = host or f"the machine of `{shown}`"
    if ending is Ending.NO_PYTHON:
        return HostProblem(
            f"there is no python3 on {where}",
            "our agent runs on the standard library of Python 3.10 or later; nothing else is needed there",
            "SHAKEDOWN_FAR_PYTHON=/path/to/python3 names one that is not on its PATH",
        )
    if ending is Ending.OLD_PYTHON:
        version = heard.decode(errors="replace").rstrip().rpartition("AGENT ")[2].split()
        return HostProblem(
            f"python3 on {where} is {'.'.join(version[1:])}; {'.'.join(map(str, OLDEST))} or later is needed",
            "SHAKEDOWN_FAR_PYTHON=/path/to/python3 names a newer one there",
        )
    if host and code == 255:
        for phrase, meaning, hints in _SSH:
            if phrase.lower() in said.lower():
                return HostProblem(
                    meaning.format(host=host) + f": {said}", *(hint.format(host=host) for hint in hints)
                )
    noise = _short(heard.decode(errors="replace"))
    told = "; ".join(filter(None, [said, f"it printed: {noise}" if noise else ""])) or "it said nothing"
    if ending is Ending.EXITED:
        return HostProblem(
            f"`{shown}` ended with code {code} before our agent spoke: {told}",
            f"these words must give a shell that reads commands from standard input: echo id | {shown} sh",
        )
    if ending is Ending.NOISE:
        return HostProblem(
            f"`{shown}` prints without end, and our agent is not heard: {told}",
            f"these words must give a quiet shell: echo id | {shown} sh",
        )
    return HostProblem(
        f"`{shown}` gave no sign of our agent within 30 s: {told}",
        "does it ask for something? Nobody can answer it here",
    )


def _short(text: str) -> str:
    text = " ".join(strip_controls(text).split())
    return text if len(text) <= _MOST_SAID else f"… {text[-_MOST_SAID:]}"
