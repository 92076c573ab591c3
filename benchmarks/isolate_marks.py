"""What the simulation of isolation should show, beside what it showed.

    python benchmarks/isolate_marks.py [--table benchmarks/results/isolate_simulation.json]

"sure" is a crash that shows every time; of failures that come and go a crash, a hang at start and a failure
while serving are told apart, as the planner believes them sure to a different degree; "told": with
--intermittent. Launches are all launches, the reproduction and the certificate too. It runs nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "isolate_simulation.json"
# setting, row, launches at most, right at least
SURE = (
    ("N=24 q=1 crash", "mixed", 7.5, 0.98),
    ("N=24 q=1 crash", "one", 7.0, 0.98),
    ("N=24 q=1 crash", "two", 14.0, 0.98),
    ("N=24 q=1 crash", "three", 22.0, 0.98),
    ("N=40 q=1 crash", "mixed", 8.5, 0.98),
    ("N=24 q=1 crash", "apart", 14.0, 0.95),
)
FLAKY = tuple(
    (f"N=24 q={q} {failure}", "mixed", most, least)
    for q, most, least in (("0.7", 18.0, 0.94), ("0.4", 40.0, 0.86))
    for failure in ("crash", "crash told", "hang", "hang told", "serving", "serving told")
)
TURNED = 1.2  # what a misleading prior may cost of the same marks
RIVALS = ("ddmin (picire)", "EnvCause (null first by itself)", "one at a time", "splitting, null first")


def mark(rows: Mapping[str, Any], label: str, row: str, most: float, least: float) -> str:
    found = rows.get(label, {}).get(row)
    if found is None:
        return f"{label + ', ' + row:40} not run"
    low, high = found["launches_interval"]
    right_low, right_high = found["right_interval"]
    met = [found["launches"] <= most, found["right"] >= least]
    return (
        f"{label + ', ' + row:40} {found['cases']:5d} {found['launches']:7.2f} ({low:.2f}-{high:.2f})"
        f" <= {most:5.2f} {_said(met[0])}  {found['right']:6.1%} ({right_low:.1%}-{right_high:.1%})"
        f" >= {least:.0%} {_said(met[1])}"
    )


def _said(met: bool) -> str:
    return "met   " if met else "MISSED"


def innocents(rows: Mapping[str, Any]) -> str:
    """At q = 1, of all our cases."""
    cases = blamed = 0
    for label, kinds in rows.items():
        if " q=1 " in label and "," in label and label.split(", ")[-1] in {"prior", "flat", "inverted"}:
            for name, row in kinds.items():
                if name != "mixed":
                    cases += row["cases"]
                    blamed += round(row["innocent"] * row["cases"])
    return f"blamed an innocent at q = 1: {blamed} of {cases} (at most 1 %)"


def calibration(rows: Mapping[str, Any], label: str) -> list[str]:
    return [
        f"    {label}: stated {line['stated']:.3f}, right {line['right']:.1%} of {line['answers']}"
        for line in rows.get(label, {}).get("mixed", {}).get("calibration", ())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=RESULTS)
    whole = json.loads(parser.parse_args().table.read_text())
    rows = whole["rows"]
    print(f"shakedown {whole['shakedown']}, {whole['cases']} cases, seed {whole['seed']}, {whole['machine']}")
    for setting, row, most, least in SURE + FLAKY:
        print(mark(rows, f"{setting}, prior", row, most, least))
    print("with the prior inverted, at most 1.2 times the launches:")
    for setting, row, most, least in SURE + FLAKY:
        print(mark(rows, f"{setting}, inverted", row, most * TURNED, least))
    print("others on the same worlds (launches, right):")
    for setting in ("N=24 q=1", "N=40 q=1", "N=24 q=0.7", "N=24 q=0.4"):
        for name in RIVALS:
            for kind in ("mixed", "one", "two", "three", "apart"):
                found = rows.get(f"{setting} {name}", {}).get(kind)
                if found:
                    told = f"{setting} {name}, {kind}"
                    print(f"{told:55} {found['cases']:5d} {found['launches']:7.2f} {found['right']:7.1%}")
    print(innocents(rows))
    for failure in ("crash", "crash told", "hang", "hang told", "serving", "serving told"):
        for q in ("1", "0.7", "0.4"):
            print(*calibration(rows, f"N=24 q={q} {failure}, prior"), sep="\n")
    slowest = max(row["slowest_ms_a_launch"] for kinds in rows.values() for row in kinds.values())
    print(f"slowest planner: {slowest} ms a launch, {whole['most_mb']} MB (at most 300 ms, 200 MB)")


if __name__ == "__main__":
    main()
