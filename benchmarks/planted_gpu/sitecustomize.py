"""Read by every Python of a planted server: this folder on PYTHONPATH, what to do in STRIKE (strike.py)."""

import os

if os.environ.get("STRIKE"):
    import strike

    strike.plant(os.environ["STRIKE"])
