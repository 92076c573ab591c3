"""The commands of `shakedown draft`: one per stage of making an EAGLE-3 drafter, and the chain of them all.

It never decides anything; a job, and torch with it, is imported only when its command runs.
"""

from __future__ import annotations

import click


@click.group()
def draft() -> None:
    """Make an EAGLE-3 drafter for a model, from data to one directory that serves."""
