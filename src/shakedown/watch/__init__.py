"""Says within seconds what becomes of a launch: readings, and a pure decision over them.

It never signals a process and never sends a request.
"""

from shakedown.watch.assessment import Assessment
from shakedown.watch.log import WatchedLine
from shakedown.watch.loop import Watcher
from shakedown.watch.proc import Progress
from shakedown.watch.situation import Limits, State, learn

__all__ = ["Assessment", "Limits", "Progress", "State", "WatchedLine", "Watcher", "learn"]
