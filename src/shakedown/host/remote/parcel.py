"""What is sent to the far side: the words that start a Python there, and our own rooms as one archive.

It writes no file, here or there.
"""

from __future__ import annotations

import io
import shlex
import zipfile
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import shakedown
from shakedown.host.remote.wire import PROTOCOL

OLDEST = (3, 10)
GREETING = b"SHAKEDOWN-AGENT"
NO_PYTHON = b"SHAKEDOWN-HAS-NO-PYTHON"
_ROOMS = ("errors.py", "core", "redact", "host")
_STAMP = (2020, 1, 1, 0, 0, 0)

# Older Pythons lack two names of the standard library that our rooms import.
_INIT = f'''
__version__ = "{shakedown.__version__}"
import enum, typing
if not hasattr(enum, "StrEnum"):
    class StrEnum(str, enum.Enum):
        __str__ = str.__str__
    enum.StrEnum = StrEnum
if not hasattr(typing, "Self"):
    typing.Self = typing.TypeVar("Self")
'''

# Read by a shell, whatever it is, as the first thing on its standard input: no single quote may be inside.
# What it greets with is put together there, so that a terminal's echo of these lines is no greeting.
_STAGE = """
import os, sys
if os.isatty(0):
    import tty
    tty.setraw(0)
def read(count):
    got = b""
    while len(got) < count:
        piece = os.read(0, count - len(got))
        if not piece:
            sys.exit(3)
        got += piece
    return got
os.write(1, b"SHAKEDOWN-" + b"AGENT %d %d %d\\n" % (PROTOCOL, sys.version_info[0], sys.version_info[1]))
size = int(read(8), 16)
import zlib
parcel = memoryview(zlib.decompress(read(size)))
place = os.memfd_create("shakedown", 0)
while parcel:
    parcel = parcel[os.write(place, parcel):]
sys.path.append("/proc/%d/fd/%d" % (os.getpid(), place))
from shakedown.host.remote.agent import main
main()
"""


def first_words(python: str) -> bytes:
    """What a shell of the far side is told."""
    python = shlex.quote(python)
    stage = _STAGE.replace("PROTOCOL", str(PROTOCOL))
    missing = f'{{ echo "{NO_PYTHON[:10].decode()}""{NO_PYTHON[10:].decode()}"; exit 97; }}'
    text = f"command -v {python} >/dev/null 2>&1 || {missing}; exec {python} -I -S -X utf8 -c '{stage}'\n"
    return text.encode()


@cache
def parcel() -> bytes:
    """Eight digits of its length, then the deflated archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as stored:
        for name, text in sorted(_sources().items()):
            stored.writestr(zipfile.ZipInfo(name, _STAMP), text)
    packed = zlib.compress(archive.getvalue(), 9)
    return b"%08x" % len(packed) + packed


def _sources() -> dict[str, bytes]:
    root = Path(shakedown.__file__).parent
    found = {"shakedown/__init__.py": _INIT.encode()}
    for room in _ROOMS:
        place = root / room
        for file in [place] if place.is_file() else place.rglob("*.py"):
            found[f"shakedown/{file.relative_to(root)}"] = file.read_bytes()
    nvml = find_spec("pynvml")
    if nvml is not None and nvml.origin and nvml.origin.endswith(".py"):  # one file; asks the driver there
        found["pynvml.py"] = Path(nvml.origin).read_bytes()
    return found
