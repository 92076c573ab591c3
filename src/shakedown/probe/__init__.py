"""Everything that sends a request to the server under test.

It never reads a process and never starts one.
"""

from shakedown.probe.canary import CanaryReport, Heartbeat, Pulse, check, is_early, pulse
from shakedown.probe.client import Failure, Target
from shakedown.probe.marks import measure
from shakedown.probe.numeric import Layer, LayerState
from shakedown.probe.ready import Readiness, ReadyState, poll, served_model

__all__ = [
    "CanaryReport",
    "Failure",
    "Heartbeat",
    "Layer",
    "LayerState",
    "Pulse",
    "Readiness",
    "ReadyState",
    "Target",
    "check",
    "is_early",
    "measure",
    "poll",
    "pulse",
    "served_model",
]
