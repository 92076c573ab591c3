"""One server of `gpu_servers.py`: launched under `shakedown run`, struck, looked at, and told as a row."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_cases import LOADS, READY, STRUCK_TITLE, At, Case, Deed, command_of
from gpu_observing import ask_ras, listeners, observe, title_of

STEP_S = 0.2
FINAL = re.compile(r"\sfinal\b", re.M)  # the talk's line of a verdict
RAS_PORT = 28028
# After the deed: before the watch takes native stacks itself, and when the verdict is overdue.
LOOKS_S = (15.0, 100.0, 115.0)
LAST_LOOK_S = 20.0  # before the end of the watch, where none was due
ENDING_S = 90.0  # for the clean-up and a core dump, from the deadline on
KEPT_LINES = 25
TOLD: tuple[str, ...] = (
    "GPU",
    "GPU memory",
    "NCCL RAS",
    "kernel log",
    "CUDA core dump",
    "resident kernel",
    "flight recorder",
)
TOLD += ("not read", "process", "progress", "still alive")


class Trial:
    """Its own ledger, so its own run folder; its own port. `stop` set: it ends as soon as it can.

    `ready` is set once its server says so, or is over.
    """

    def __init__(
        self, case: Case, folder: Path, port: int, stop: threading.Event, caches: Path | None = None
    ) -> None:
        self.case, self.folder, self.port, self.stop, self.caches = case, folder, port, stop, caches
        self.ready = threading.Event()
        self.struck: dict[str, Any] | None = None  # pid and time of the deed
        self.final_s: float | None = None
        self.looks: list[dict[str, Any]] = []
        self.ras = ""
        self._looking = threading.Thread()
        self._begun, self._saw_last = 0, False
        folder.mkdir(parents=True)

    def run(self, python: str, model: Path, until_s: float, *, cpu: bool) -> dict[str, Any]:
        """Until a verdict, or until `until_s` on the monotonic clock."""
        began_s = time.monotonic()
        deadline_s = max(10.0, until_s - began_s)
        command = command_of(self.case, python, model, self.port, self.folder, cpu=cpu, caches=self.caches)
        words = [
            sys.executable,
            "-m",
            "shakedown",
            "run",
            "--json",
            "--ledger",
            str(self.folder / "ledger.db"),
        ]
        words += ["--deadline", f"{deadline_s:.0f}s", "--", *command]
        with (self.folder / "out.json").open("w") as out, (self.folder / "err").open("w") as err:
            process = subprocess.Popen(
                words,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                self._attend(process, until_s)
            finally:
                self.ready.set()
                end_gently(process)
        if self._looking.is_alive():
            self._looking.join(timeout=20.0)
        return self._row(time.monotonic() - began_s)

    def _attend(self, process: subprocess.Popen[bytes], until_s: float) -> None:
        while process.poll() is None and not self.stop.is_set():
            now_s = time.monotonic()
            if now_s >= until_s + ENDING_S:
                return
            if self.final_s is None and FINAL.search(self._text("err")):
                self.final_s = now_s
            if not self.ready.is_set() and READY[self.case.engine] in self.log():
                self.ready.set()
            if self.struck is None:
                self._strike()
            if self.final_s is None:
                self._look(now_s, until_s)
            time.sleep(STEP_S)

    # --- the deed ---------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """From outside as the weights load; else the server strikes itself, and says so."""
        case = self.case
        if case.deed is Deed.NONE:
            return
        if case.at is At.LOAD:
            if LOADS[case.engine] in self.log():
                pids = [pid for pid in self.owned() if title_of(pid).startswith(STRUCK_TITLE[case.engine])]
                for pid in pids[:1]:
                    os.kill(pid, signal.SIGSTOP)
                    self.struck = {"pid": pid, "at_s": time.monotonic()}
            return
        if case.at is At.DECODE and self.ready.is_set():
            (self.folder / "strike").touch()
        told = self._text("struck.json")
        if told.endswith("}"):
            self.struck = json.loads(told)
            self.looks.append({"after_s": 0.0, "NCCL RAS listeners": listeners(RAS_PORT, self.owned())})

    def _look(self, now_s: float, until_s: float) -> None:
        """Looks that are due, each in a thread: the moment of the verdict must not wait for one."""
        if self._looking.is_alive():
            return
        after_s = now_s - self.struck["at_s"] if self.struck else 0.0
        is_due = self.struck is not None and self._begun < len(LOOKS_S) and after_s >= LOOKS_S[self._begun]
        if is_due or (now_s >= until_s - LAST_LOOK_S and not self._saw_last):
            self._begun += 1
            self._saw_last |= now_s >= until_s - LAST_LOOK_S
            self._looking = threading.Thread(target=self._see, args=(after_s,), daemon=True)
            self._looking.start()

    def _see(self, after_s: float) -> None:
        self.looks.append({"after_s": round(after_s, 1), **observe(list(self.owned()), native=True)})
        if self.case.ranks > 1 and self.struck and not self.ras:
            self.ras = ask_ras(self.case.ras_port or RAS_PORT)

    # --- what is there ----------------------------------------------------------------------------------

    def _text(self, name: str) -> str:
        file = self.folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    def log(self) -> str:
        files = sorted(self.folder.rglob("launch.log*"))
        return "".join(file.read_text(errors="replace") for file in files)

    def owned(self) -> Iterator[int]:
        for file in self.folder.rglob("state.json"):
            yield from (pid for pid, _ in json.loads(file.read_text())["owned"])

    # --- the row ----------------------------------------------------------------------------------------

    def _row(self, seconds: float) -> dict[str, Any]:
        said = json.loads(self._text("out.json") or "{}")
        keys = ("verdict", "wait", "phase", "cause", "suspect", "seconds", "would_change")
        found = {key: said.get(key) for key in keys}
        evidence = [each for each in said.get("evidence") or () if each["kind"] in TOLD]
        struck, final_s = self.struck, self.final_s
        row = {
            **found,
            "struck": struck and struck["pid"],
            "after_fault_s": round(final_s - struck["at_s"], 1) if struck and final_s else None,
            "phases_s": _phases(said),
            "evidence": [f"{each['kind']}: {each['text']}"[:400] for each in evidence],
            "looks": self.looks[-3:],
        }
        if self.ras:
            row["NCCL RAS"] = self.ras
        row["why_not"] = why_not(self.case, row)
        if row["why_not"]:
            row["log"] = self.log().splitlines()[-KEPT_LINES:]
            row["talk"] = self._text("err").splitlines()[-KEPT_LINES:]
            row["watched_s"] = round(seconds, 1)
        return row


def _phases(said: dict[str, Any]) -> dict[str, float]:
    """When each phase began, of the rank that was there first."""
    began: dict[str, float] = {}
    for span in said.get("phases") or ():
        began[span["phase"]] = min(round(span["started_s"], 1), began.get(span["phase"], 1e9))
    return began


def why_not(case: Case, row: dict[str, Any]) -> str:
    """What of the row is not as it should be; "" where all is."""
    if case.deed is Deed.NONE:
        # Made-up weights answer wrongly, and rightly so.
        return "" if row["verdict"] in ("serves", "wrong") else f"{row['verdict']}, nothing was planted"
    if row["struck"] is None:
        return "not struck: the server did not come so far"
    if row["verdict"] != "hung":
        return f"{row['verdict']}, not hung"
    suspect = row["suspect"] or {}
    if suspect.get("pid") != row["struck"]:
        return f"named {suspect.get('name')} ({suspect.get('pid')}), struck was {row['struck']}"
    if row["after_fault_s"] is None or row["after_fault_s"] > case.within_s:
        return f"hung after {row['after_fault_s']} s, not within {case.within_s:.0f}"
    return ""


def end_gently(process: subprocess.Popen[bytes]) -> None:
    """An interrupt lets it clean up; killed, its supervisor still ends what it started."""
    for number, wait_s in ((signal.SIGINT, 45.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            continue
