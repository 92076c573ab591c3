"""A server that tells its secrets in every way: plain, split over two writes, coloured, encoded, in a bar.

usage: proc_tell.py; the secret is $CANARY_TOKEN.
"""

import base64
import os
import time
from urllib.parse import quote

secret = os.environ["CANARY_TOKEN"]
half = len(secret) // 2


def say(text):
    os.write(1, text.encode())


say(f"plain {secret}\n")
say(f"split {secret[:half]}")
time.sleep(0.4)
say(f"{secret[half:]} end\n")
say(f"coloured {secret[:half]}\x1b[31m{secret[half:]}\x1b[0m\n")
say(f"url {quote(secret, safe='')}\n")
for shift in ("", "a", "bb"):
    say(f"base64 {base64.b64encode((shift + secret + 'tail').encode()).decode()}\n")
say(f"\r10% {secret}\r20% {secret}\n")
say("x" * 65530 + secret + "\n")
say("told\n")
time.sleep(60)
