"""What Shakedown knows of engines, and how a command line is read with it. It opens nothing."""

from shakedown.engines.command import display, engine_named, identify, parse, require_isolatable
from shakedown.engines.flags import read_table

__all__ = ["display", "engine_named", "identify", "parse", "read_table", "require_isolatable"]
