"""Real faults of real engines, made again on this machine: is each called what it is?

    python benchmarks/real_faults.py [--only ID,ID] [--list] [--keep-logs FOLDER]

Each row of `faults.jsonl` is launched as a user would, `shakedown run --json -- …`, one at a time, the
cheapest first, after its setups (`fault_setups.py`) have broken what it says. Right means: the expected
verdict, kind of hang and phase, and the words of the root cause in ours. What was measured goes to
`results/real_faults.json`, where rows of earlier runs stay.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_rows import SHORT, Fault, Shown, chosen, filled, judge, read_faults, record_of
from fault_setups import SETUPS, NotMade, Stage

from shakedown import __version__
from shakedown.errors import ShakedownError
from shakedown.host.reach import free_port
from shakedown.provision import SGLANG, VLLM, prepare_engine, prepare_model
from shakedown.provision.environments import cache_folder

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "real_faults.json"
DEADLINE_S = 420  # the slowest row took 112 s on two cores to itself
GIVE_UP_S = DEADLINE_S + 120
OWN_VARIABLES = ("VLLM_", "SGLANG_", "HF_", "GLOO_", "NCCL_", "TORCH")
BASE_ENV = {
    "vllm": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": "{cache}"},
    "sglang": {},
    "transformers": {},
}
VERSIONS_SCRIPT = """
import json
from importlib import metadata
found = {d.metadata["Name"].lower(): d.version for d in metadata.distributions() if d.metadata["Name"]}
names = ("vllm", "vllm-cpu", "sglang", "sgl-kernel", "torch", "transformers")
print(json.dumps({name: found[name] for name in names if name in found}))
"""


# --- making one ------------------------------------------------------------------------------------------


class Bench:
    """The engines and the model, found or installed once, and one folder for all that the rows make."""

    def __init__(self, work: Path, logs: Path | None) -> None:
        self._work, self._logs = work, logs
        self._pythons: dict[str, Path] = {}
        self._cache = work / "cache"
        known = cache_folder() / "vllm-cache" / "modelinfos"  # 10 s of each start; what compiles stays cold
        if known.is_dir():
            shutil.copytree(known, self._cache / "modelinfos")
        self._cache.mkdir(exist_ok=True)

    def python(self, engine: str) -> Path:
        spec = SGLANG if engine == "sglang" else VLLM
        if spec.name not in self._pythons:
            self._pythons[spec.name] = prepare_engine(spec, say)
        return self._pythons[spec.name]

    def versions(self, engine: str) -> dict[str, str]:
        done = subprocess.run(
            [str(self.python(engine)), "-c", VERSIONS_SCRIPT], capture_output=True, text=True
        )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def make(self, fault: Fault) -> Shown:
        """Raises NotMade where this machine cannot make the fault."""
        if fault.not_made:
            raise NotMade(fault.not_made)
        work = self._work / fault.id
        work.mkdir()
        shutil.rmtree(self._cache / "torch_compile_cache", ignore_errors=True)
        stage = Stage(
            work=work,
            model=prepare_model(self.python("vllm"), say),
            port=free_port(),
            cache=self._cache,
            runs=work / "runs",
            env=self._environment(fault, work),
        )
        try:
            with contextlib.ExitStack() as setups:
                for name in fault.setup:
                    setups.enter_context(SETUPS[name](stage))
                shown = self._launch(fault, stage)
            if stage.moment and not stage.struck:
                raise NotMade(f"no process could be signalled: {stage.moment} was not seen")
            return shown
        finally:
            if self._logs is not None:
                for log in stage.runs.glob("*/launch.log"):
                    shutil.copyfile(log, self._logs / f"{fault.id}.log")
            shutil.rmtree(work, ignore_errors=True)

    def _environment(self, fault: Fault, work: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
        path = f"{self.python(fault.engine).parent}:{os.environ['PATH']}"
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hub"), "PATH": path}
        return kept | offline | BASE_ENV[fault.engine] | dict(fault.env)

    def _launch(self, fault: Fault, stage: Stage) -> Shown:
        names = self._names(fault, stage)
        argv = [filled(token, names) for part in fault.argv for token in SHORT.get(part, (part,))]
        program = [sys.executable, "-m", "shakedown", "run", "--json", "--deadline", f"{DEADLINE_S}s"]
        program += ["--ledger", str(stage.work / "ledger.db"), "--", *argv]
        env = {name: filled(value, names) for name, value in stage.env.items()}
        began_s = time.monotonic()
        code, answer, complaint = run_ours([*stage.around, *program], env, stage)
        seconds = time.monotonic() - began_s
        try:
            document = json.loads(answer)
        except ValueError:
            document = {"verdict": None, "error": complaint.strip()[-500:] or f"no answer, exit code {code}"}
        return judge(fault, document, names, exit_code=code, seconds=seconds, struck=tuple(stage.struck))

    def _names(self, fault: Fault, stage: Stage) -> dict[str, str]:
        bin_folder = self.python(fault.engine).parent
        return {
            "python": str(bin_folder / "python"),
            "transformers": str(bin_folder / "transformers"),
            "model": str(stage.model),
            "port": str(stage.port),
            "free_port": str(free_port()),
            "cache": str(stage.cache),
            **stage.places,
        }


def run_ours(argv: Sequence[str], env: Mapping[str, str], stage: Stage) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the latter is read only in the end if nobody should."""
    with (stage.work / "answer").open("w+") as answer, message_stream(stage) as (writer, read_messages):
        process = subprocess.Popen(
            argv, env=env, cwd=stage.work, stdin=subprocess.DEVNULL, stdout=answer, stderr=writer
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GIVE_UP_S)
        finally:
            if process.poll() is None:
                process.terminate()  # it ends what it started
            code = process.wait(60)
        answer.seek(0)
        return code, answer.read(), read_messages()


@contextlib.contextmanager
def message_stream(stage: Stage) -> Iterator[Any]:
    """A file for our program's messages, or a small pipe that fills up."""
    if stage.unread_bytes is None:
        with (stage.work / "messages").open("w+") as file:
            yield file, lambda: (file.seek(0), file.read())[1]
        return
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, stage.unread_bytes)
    os.set_blocking(reader, False)
    try:
        yield writer, lambda: os.read(reader, 1 << 16).decode(errors="replace")
    finally:
        os.close(reader)
        os.close(writer)


# --- telling ---------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def keep(records: Mapping[str, Mapping[str, Any]], versions: Mapping[str, Mapping[str, str]]) -> None:
    """Writes the measured rows among those of earlier runs."""
    old = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    order = {fault.id: at for at, fault in enumerate(read_faults())}
    rows = {**old.get("rows", {}), **records}
    whole = {
        "shakedown": __version__,
        "engines": {**old.get("engines", {}), **versions},
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "rows": {id_: rows[id_] for id_ in sorted(rows, key=lambda id_: order.get(id_, len(order)))},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def list_faults() -> None:
    for fault in read_faults():
        broken = ", ".join(fault.setup)
        print(f"{fault.id:<34} {fault.engine:<12} {fault.expected:<26} {fault.usual_s:4.0f} s  {broken}")


ROW = "{:<34} {:<26} {:<26} {:>6}  {}"


def run_all(faults: Sequence[Fault], bench: Bench) -> bool:
    """Makes each, tells each, keeps each at once; whether all that could be made are right."""
    print(ROW.format("fault", "expected", "said", "s", ""), flush=True)
    misses: list[tuple[Fault, Shown]] = []
    not_made: list[tuple[Fault, str]] = []
    right = 0
    for fault in faults:
        try:
            shown = bench.make(fault)
        except NotMade as reason:
            not_made.append((fault, str(reason)))
            print(ROW.format(fault.id, fault.expected, "not made here", "", reason), flush=True)
            keep({fault.id: {"result": "not made here", "why": str(reason)}}, {})
            continue
        print(
            ROW.format(fault.id, fault.expected, shown.said, f"{shown.seconds:.1f}", shown.mark), flush=True
        )
        right += shown.right
        if not shown.right:
            misses.append((fault, shown))
            print(f"    {shown.document.get('cause') or shown.document.get('error')}", flush=True)
        keep({fault.id: record_of(fault, shown)}, {fault.engine: bench.versions(fault.engine)})
    print(f"\n{right} right, {len(misses)} missed, {len(not_made)} not made here")
    for fault, shown in misses:
        print(f"missed    {fault.id}: expected {fault.expected} ({fault.root}), said {shown.said}")
    for fault, why in not_made:
        print(f"not made  {fault.id}: {why}")
    for engine in sorted({fault.engine for fault in faults}):
        print(engine, ", ".join(f"{name} {version}" for name, version in bench.versions(engine).items()))
    return not misses


def main() -> None:
    parser = argparse.ArgumentParser(description="Real faults of real engines against the verdicts on them.")
    parser.add_argument("--only", metavar="ID[,ID]", help="These rows, in this order.")
    parser.add_argument("--list", action="store_true", help="Show all rows; launch nothing.")
    parser.add_argument("--keep-logs", type=Path, metavar="FOLDER", help="Copy each server's log there.")
    given = parser.parse_args()
    if given.list:
        list_faults()
        return
    if given.keep_logs is not None:
        given.keep_logs.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was broken is mended on the way out
    with tempfile.TemporaryDirectory(prefix="shakedown-faults-") as work:
        try:
            good = run_all(chosen(given.only), Bench(Path(work), given.keep_logs))
        except ShakedownError as problem:
            raise SystemExit("\n  hint: ".join((problem.message, *problem.hints))) from None
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
