"""How fast a launch loaded its weights, and what held it up.

It measures nothing: the watch did.
"""

from __future__ import annotations

from typing import Any

from shakedown.core import PLACE_FACT, WEIGHTS_FACT, Loading, Phase, TrialRecord, is_network
from shakedown.report.words import phase_times, seconds_words

GB = 1e9
MOSTLY = 0.5  # of the weights came off the disk
BUSY_CORES = 0.8
SHORT_S = 1.0  # the readings are a second apart


def load_document(trial: TrialRecord) -> dict[str, Any] | None:
    """Seconds, bytes and rate of the weight load with its limit; None where none was seen."""
    loading = trial.judgement.loading if trial.judgement else None
    if loading is None:
        return None
    size, seconds = weight_bytes(trial), load_seconds(trial, loading)
    return {
        "seconds": seconds,
        "weight_bytes": size,
        "gb_per_s": size / GB / seconds if size and seconds else None,
        "disk_bytes": loading.disk_bytes,
        "cores": loading.cpu_s / loading.seconds,
        "file_system": dict(trial.facts).get(PLACE_FACT),
        "limit": limit_of(trial, loading),
    }


def load_words(trial: TrialRecord) -> str:
    """`0.54 GB in 4.2 s, 0.13 GB/s: the disk`; "" where no load was seen."""
    told = load_document(trial)
    if told is None:
        return ""
    size, rate = told["weight_bytes"], told["gb_per_s"]
    amount = f"{size / GB:.2f} GB in " if size else ""
    speed = f", {rate:.2f} GB/s" if rate else ""
    limit = f": {told['limit']}" if told["limit"] else ""
    return f"{amount}{seconds_words(told['seconds'])}{speed}{limit}"


def weight_bytes(trial: TrialRecord) -> int | None:
    text = dict(trial.facts).get(WEIGHTS_FACT, "")
    return int(text) if text.isdecimal() else None


def load_seconds(trial: TrialRecord, loading: Loading) -> float:
    """By the log's markers; the readings are only taken once a second."""
    times = phase_times(trial.judgement, trial.seconds) if trial.judgement else ()
    return next((time.seconds for time in times if time.phase is Phase.WEIGHT_LOAD), loading.seconds)


def limit_of(trial: TrialRecord, loading: Loading) -> str:
    """What the load waited for, as far as the readings tell; "" for one too short to say."""
    if load_seconds(trial, loading) < SHORT_S:
        return ""
    kind, size = dict(trial.facts).get(PLACE_FACT, ""), weight_bytes(trial)
    if is_network(kind):
        return f"a network file system ({kind})"
    if size and loading.disk_bytes >= MOSTLY * size:
        return "the disk"
    cores = loading.cpu_s / loading.seconds
    if cores >= BUSY_CORES:
        return f"the CPU ({cores:.1f} cores busy)"
    return "neither disk nor CPU (the copy to the device, or a wait)"
