"""A stand-in server that gives away all it knows: in its log, its title, its exceptions and its answers.

    leaky.py --model NAME --port PORT [--config FILE] [any flags]

What it knows: the variables named in LEAKY_ENV, the arguments behind --api-key, --extra and --origin, and all
of --config. STAND_IN_FAULT plants faults as in `stand_in.py`; LEAKY_ANSWER=1 makes every completion an error
that quotes them.
"""

import base64
import ctypes
import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

import http_model
import stand_in


def secrets(flags: dict[str, str]) -> list[str]:
    """Of the arguments the insides: of a JSON object its leaves, of a URL its password."""
    known = [os.environ[name] for name in os.environ["LEAKY_ENV"].split() if name in os.environ]
    if "--api-key" in flags:
        known.append(flags["--api-key"])
    if "--extra" in flags:
        known.append(json.loads(flags["--extra"])["auth"]["password"])
    if "--origin" in flags:
        known.append(flags["--origin"].partition("://")[2].partition("@")[0].partition(":")[2])
    if "--config" in flags:
        known += [line.split(": ", 1)[1] for line in Path(flags["--config"]).read_text().splitlines()]
    return known


def tell(known: list[str]) -> None:
    for number, secret in enumerate(known):
        raw = secret.encode()
        stand_in.say(f"now read {number} {secret} and {raw.hex()}")
        stand_in.say(
            "header " + base64.b64encode(b"user:" + raw).decode() + f" from /x?v={quote(secret)}&y=1"
        )
        stand_in.say("urlsafe " + base64.urlsafe_b64encode(raw).decode())
        half = len(raw) // 2
        os.write(1, b"torn " + raw[:half])
        os.write(1, raw[half:] + b" end\n")
    stand_in.say(f"args: {sys.argv} env: {dict(os.environ)}")


def main() -> None:
    known = secrets(stand_in.given_flags(sys.argv[1:]))
    tell(known)
    quoted = " ".join(known)

    def capture_graphs(faults: dict[str, str]) -> None:
        ctypes.CDLL(None).prctl(15, known[0].encode(), 0, 0, 0)  # its name, of which the kernel keeps 15
        if "crash" in faults:
            raise RuntimeError(f"capture failed for {quoted}")

    stand_in.capture_graphs = capture_graphs
    if os.environ.get("LEAKY_ANSWER"):
        http_model.Server.complete = lambda self, body: self.reply(500, {"error": {"message": quoted}})
        http_model.Server.chat = http_model.Server.complete
    stand_in.main()


if __name__ == "__main__":
    main()
