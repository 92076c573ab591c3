"""Finding and proving the cause of a failing launch, given an oracle that runs experiments.

Pure: it touches no process, file or clock. numpy loads when a search among factors begins.
"""

from shakedown.isolate.base import Ladder, RungFinding
from shakedown.isolate.conclusion import isolate
from shakedown.isolate.forecast import Forecast, forecast, time_to
from shakedown.isolate.judge import compare
from shakedown.isolate.notebook import SearchLimits
from shakedown.isolate.prior import Clues

__all__ = [
    "Clues",
    "Forecast",
    "Ladder",
    "RungFinding",
    "SearchLimits",
    "compare",
    "forecast",
    "isolate",
    "time_to",
]
