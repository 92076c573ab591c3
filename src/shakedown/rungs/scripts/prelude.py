"""What every script begins with: the parameters it was given, and how it says what it found.

A script runs in the launch's own interpreter, reads its text from standard input, and prints one JSON
object a line. It imports nothing of Shakedown.
"""

import json
import os
import re
import sys
import time

PARAMS = json.loads(os.environ.pop("SHAKEDOWN_RUNG", "{}"))


def say(**fact):
    print(json.dumps(fact, default=str), flush=True)


def found(rule, level, what, evidence, effect="", mend=""):
    """One finding. `level`: error (this launch would fail), warning (it may), note (good to know)."""
    say(rule=rule, level=level, what=what, evidence=evidence, effect=effect, mend=mend)


def looked(rule, evidence):
    """Looked at, and nothing wrong: kept, so that a silent check is never taken for a passed one."""
    say(rule=rule, level="ok", what="", evidence=evidence)


def not_seen(rule, why):
    """Could not be looked at here: a value of its own, neither good nor bad."""
    say(rule=rule, level="unknown", what="", evidence=why)


def size_words(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def for_this_python(name):
    """False of an extension module that a wheel brings for another Python beside this one's."""
    tag = re.search(r"\.cpython-(\d+)", name)
    return tag is None or tag[1] == "{}{}".format(*sys.version_info)


class RungFailed(Exception):
    """What a rung stands for does not hold on this machine."""


def passed(name, told=""):
    """A rung's last word: it ran to its end, and what it computed is right."""
    print(f"SHAKEDOWN RUNG PASSED {name} {told}".rstrip(), flush=True)
