"""What Shakedown knows of engines, and how a command line is read with it. It opens nothing."""

from shakedown.engines.command import (
    display,
    endable,
    engine_named,
    identify,
    parse,
    passing_on,
    require_isolatable,
    require_measurable,
)
from shakedown.engines.flags import read_table

__all__ = [
    "display",
    "endable",
    "engine_named",
    "identify",
    "parse",
    "passing_on",
    "read_table",
    "require_isolatable",
    "require_measurable",
]
