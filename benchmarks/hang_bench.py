"""Makes one start of the hang benchmark: surroundings, launch, watch, and the row that is kept of it.

It starts servers as `shakedown run` does, and ends everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fault_rows import SHORT, filled, without_places
from fault_setups import SETUPS, NotMade
from hang_recording import ANSWERS, RecordingHost, Story, how_late, how_long, told
from hang_setups import HardStage
from hang_starts import Start
from real_faults import BASE_ENV, OWN_VARIABLES, VERSIONS_SCRIPT, say

from shakedown.core import Launch, Phase, Verdict
from shakedown.errors import ShakedownError
from shakedown.host.execution import execute
from shakedown.host.reach import free_port
from shakedown.jobs.reading import own_limits, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Progress
from shakedown.provision import SGLANG, VLLM, prepare_engine, prepare_model
from shakedown.provision.environments import cache_folder
from shakedown.trial import Subject, run_trial
from shakedown.watch import Assessment, Limits, learn

HANGING = Path(__file__).parents[1] / "tests" / "bad_servers" / "hanging.py"
COMMANDS = {
    "transformers": ("{transformers}", "serve", "{model}", "{here}"),
    "vllm": ("{vllm}", "--model", "{model}", "{here}", "{small}", "--enforce-eager"),
    "compiled": ("{vllm}", "--model", "{model}", "{here}", "{small}"),
    "sglang": (
        "{sglang}", "--model-path", "{model}", "{here}", "--attention-backend", "torch_native",
        "--mem-fraction-static", "0.2", "--max-total-tokens", "8192",
    ),
    "program": (sys.executable, str(HANGING), "{kind}", "--seed", "{seed}"),
}  # fmt: skip
ENVIRONMENTS = {
    **BASE_ENV,
    "compiled": BASE_ENV["vllm"],
    "sglang": {"SGLANG_USE_CPU_ENGINE": "1"},
    "program": {},
}
LEARNT_FROM = 3  # plain starts
LEFT_ALONE = Limits(suspect_s=7200.0, blocked_s=7200.0)
GOOD = (ANSWERS, Verdict.SERVES.value, Verdict.SLOW.value)

Rows = Mapping[str, Mapping[str, Any]]


class Interrupted(Exception):
    """We are told to end: what was started is ended first."""


class Enough(Exception):
    """The server has begun to answer, and no more is asked of this start."""


class Silent:
    """A talk that nobody hears."""

    def say(self, text: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


class Bench:
    """The engines and the model, found or installed once. `work` is for what the starts make."""

    def __init__(self, work: Path, traces: Path) -> None:
        self._work, self._traces = work, traces
        self._preparing = threading.Lock()
        self._pythons: dict[str, Path] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._over = threading.Event()

    def python(self, engine: str) -> Path:
        spec = SGLANG if engine == "sglang" else VLLM
        with self._preparing:
            if spec.name not in self._pythons:
                self._pythons[spec.name] = prepare_engine(spec, say)
            return self._pythons[spec.name]

    def versions(self, engine: str) -> dict[str, str]:
        if engine not in self._versions:
            argv = [str(self.python(engine)), "-c", VERSIONS_SCRIPT]
            done = execute(argv, env={}, cwd=Path("/"), stdin="", deadline_s=60)
            self._versions[engine] = dict(json.loads(done.stdout)) if done.code == 0 else {}
        return self._versions[engine]

    def run(self, batch: Sequence[Start], rows: Rows) -> dict[str, dict[str, Any]]:
        """All starts of a batch at once."""
        with ThreadPoolExecutor(max_workers=len(batch)) as pool:
            futures = {start.id: pool.submit(self._make, start, rows) for start in batch}
            try:
                return {id_: future.result() for id_, future in futures.items()}
            except BaseException:
                self._over.set()
                raise

    def _make(self, start: Start, rows: Rows) -> dict[str, Any]:
        row: dict[str, Any] = {
            "engine": start.engine,
            "population": start.population,
            "hung": start.hung,
            "left_alone": start.left_alone,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average": round(os.getloadavg()[0], 1),
        }
        with tempfile.TemporaryDirectory(
            dir=self._work, prefix=f"{start.id}-", ignore_cleanup_errors=True
        ) as place:
            stage = self._stage(start, Path(place))
            try:
                with contextlib.ExitStack() as setups:
                    for setup in start.setups:
                        setups.enter_context(SETUPS[setup](stage))
                    return row | self._watch(start, stage, rows)
            except (NotMade, ShakedownError) as reason:
                return row | {"not_made": without_places(str(reason), {})}

    def _stage(self, start: Start, work: Path) -> HardStage:
        cache = work / "cache"
        cache.mkdir()
        known = cache_folder() / "vllm-cache" / "modelinfos"
        if start.engine in ("vllm", "compiled") and known.is_dir():
            shutil.copytree(known, cache / "modelinfos")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
        own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hub"), "HANG_STAMP": str(work / "stamp")}
        return HardStage(
            work=work,
            model=prepare_model(self.python("vllm"), say),
            port=free_port(),
            cache=cache,
            runs=work / "runs",
            env={**kept, **own, **ENVIRONMENTS[start.engine], **start.env},
            seed=start.seed,
            engine_folder=self.python(start.engine).parents[1],
        )

    def _watch(self, start: Start, stage: HardStage, rows: Rows) -> dict[str, Any]:
        names = self._names(start, stage)
        tokens = [token for word in COMMANDS[start.engine] for token in SHORT.get(word, (word,))]
        launch = Launch(
            argv=(*stage.prefix, *(filled(token, names) for token in (*tokens, *start.flags))),
            env={name: filled(value, names) for name, value in stage.env.items()},
            cwd=stage.work,
        )
        stem = self._traces / start.id
        host = RecordingHost(stem, stage.groups)
        reading = read_request(LaunchRequest(launch=launch), host, Silent(), live=False)
        command = reading.command
        budgets = learnt_by(start, rows)
        subject = Subject(
            title=start.id,
            launch=launch,
            engine=command.engine,
            port=reading.port,
            target=reading.target,
            limits=LEFT_ALONE if start.left_alone else Limits(learnt=budgets, own_s=own_limits(command)),
            deadline_s=start.deadline_s,
        )
        with stem.with_name(stem.name + ".times").open("w") as log, contextlib.closing(host):
            story = Story(log)

            def look_on(assessment: Assessment) -> None:
                if self._over.is_set():
                    raise Interrupted
                story.hear(assessment)
                if not start.answers and story.answered_s is not None and assessment.judgement is None:
                    raise Enough

            try:
                judgement = run_trial(host, subject, stage.runs / start.id, look_on).judgement
            except Enough:
                judgement = None
        row = told(judgement, story, names) | {"learnt": bool(budgets)}
        return row | (
            how_late(judgement, story, host, stage.work / "stamp") if start.hung else how_long(story)
        )

    def _names(self, start: Start, stage: HardStage) -> dict[str, str]:
        folder = self.python(start.engine).parent
        return {
            "python": str(folder / "python"),
            "transformers": str(folder / "transformers"),
            "model": str(stage.model),
            "port": str(stage.port),
            "free_port": str(free_port()),
            "cache": str(stage.cache),
            "kind": start.population,
            "seed": str(start.seed),
        }


def learnt_by(start: Start, rows: Rows) -> dict[Phase, float]:
    """Budgets as a ledger has them after a few plain starts of that engine; the tightest that may come."""
    if not start.learnt:
        return {}
    engine = "vllm" if start.engine == "compiled" else start.engine
    plain = [
        row["silences"]
        for row in rows.values()
        if (row["engine"], row["population"]) == (engine, "plain") and row.get("verdict") in GOOD
    ]
    return learn({Phase(phase): s for phase, s in one.items()} for one in plain[:LEARNT_FROM])
