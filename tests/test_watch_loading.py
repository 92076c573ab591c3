"""How a launch loads its weights: what the watch counts, and how it is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from replaying import process
from report_samples import trial as recorded

from shakedown.core import Judgement, Loading, Phase, PhaseSpan, ProcessSample, Verdict
from shakedown.ledger.place import file_system
from shakedown.report.loading import load_document, load_words
from shakedown.watch.loading import LoadMeter

MB = 1_000_000


def sample(pid: int, disk_bytes: int, cpu_s: float) -> ProcessSample:
    return process(pid, disk_bytes=disk_bytes, cpu_s=cpu_s)


def test_only_the_load_counts_and_every_rank_of_it():
    meter = LoadMeter()
    meter.feed(Phase.IMPORT, [sample(1, 500 * MB, 9.0)], 10.0)
    assert meter.loading is None
    meter.feed(Phase.WEIGHT_LOAD, [sample(1, 600 * MB, 9.5), sample(2, 50 * MB, 1.0)], 11.0)
    meter.feed(Phase.WEIGHT_LOAD, [sample(1, 600 * MB, 10.0), sample(2, 90 * MB, 1.5)], 12.0)
    meter.feed(Phase.POST_LOAD, [sample(1, 610 * MB, 10.5), sample(2, 90 * MB, 2.0)], 13.0)
    meter.feed(Phase.POST_LOAD, [sample(1, 999 * MB, 99.0), sample(2, 999 * MB, 99.0)], 14.0)
    assert meter.loading == Loading(seconds=3.0, disk_bytes=150 * MB, cpu_s=2.5)


def trial(loading: Loading | None, **facts: str):
    spans = (
        PhaseSpan(phase=Phase.IMPORT, rank="", started_s=0.0, ended_s=5.0),
        PhaseSpan(phase=Phase.WEIGHT_LOAD, rank="", started_s=5.0, ended_s=9.0),
        PhaseSpan(phase=Phase.READY, rank="", started_s=9.0, ended_s=None),
    )
    judgement = Judgement(verdict=Verdict.SERVES, phase=Phase.SERVING, phases=spans, loading=loading)
    return recorded("t1", judgement=judgement, facts=tuple(facts.items()))


@pytest.mark.parametrize(
    ("kind", "disk_mb", "cpu_s", "limit"),
    [
        ("ext4", 1900, 0.5, "the disk"),
        ("ext4", 10, 4.9, "the CPU (1.0 cores busy)"),
        ("ext4", 10, 0.5, "neither disk nor CPU (the copy to the device, or a wait)"),
        ("nfs4", 10, 0.5, "a network file system (nfs4)"),
    ],
)
def test_a_load_is_told_with_its_rate_and_its_limit(kind, disk_mb, cpu_s, limit):
    loading = Loading(seconds=5.0, disk_bytes=disk_mb * MB, cpu_s=cpu_s)
    told = trial(loading, weight_bytes="2000000000", weights_on=kind)
    assert load_words(told) == f"2.00 GB in 4.0 s, 0.50 GB/s: {limit}"
    document = load_document(told)
    assert document is not None
    assert (document["gb_per_s"], document["limit"]) == (0.5, limit)


def test_without_a_known_size_there_is_no_rate():
    assert load_words(trial(Loading(seconds=5.0, disk_bytes=0, cpu_s=5.0))).startswith("4.0 s: the CPU")
    assert load_words(trial(None)) == ""


def test_a_file_system_is_that_of_the_nearest_mount(tmp_path: Path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/root rw\n"
        f"30 22 0:40 / {tmp_path}/models rw shared:1 - nfs4 host:/models rw\n"
    )
    assert file_system(tmp_path / "models" / "m", mounts) == "nfs4"
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "none") == ""
