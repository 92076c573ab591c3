"""What the rows of the hang benchmark come to: false alarms per launch, latencies, and what others would do.

It launches nothing and rounds nothing away: a hang that was not called counts as never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from hang_starts import SPINNING, UNKNOWN_BUSY

Row = Mapping[str, Any]
CLOCKS_S = (60, 300, 600)
SILENCES_S = (60, 120, 300)
WAITING_MARK_S, SPINNING_MARK_S = 45, 120
NEVER = math.inf


def tables(rows: Mapping[str, Row]) -> str:
    made = [row for row in rows.values() if "not_made" not in row]
    healthy = [row for row in made if not row["hung"]]
    alone = [row for row in made if row.get("left_alone")]
    hung = [row for row in made if row["hung"] and row not in alone]
    parts = [healthy_table(healthy), alarms(healthy)] if healthy else []
    parts += [hung_table(hung), marks(hung), rivals(hung)] if hung else []
    parts += [watchdogs(alone)] if alone else []
    left_out = [f"not made here  {id_}: {row['not_made']}" for id_, row in rows.items() if "not_made" in row]
    return "\n\n".join([*parts, *(["\n".join(left_out)] if left_out else [])])


# --- healthy starts --------------------------------------------------------------------------------------

HEALTHY = "{:<13} {:<28} {:>3} {:>5} {:>5} {:>5} {:>5} {:>7} {:>9} {:>9} {:>10}"


def healthy_table(rows: Sequence[Row]) -> str:
    head = (
        "engine",
        "made hard by",
        "n",
        "hung",
        "slow",
        "other",
        "susp.",
        "load",
        "ready s",
        "max",
        "log silent",
    )
    lines = ["healthy starts", HEALTHY.format(*head)]
    for (engine, population), group in grouped(rows):
        verdicts = [row["verdict"] for row in group]
        ready = [row["ready_s"] for row in group if row["ready_s"] is not None]
        lines.append(
            HEALTHY.format(
                engine,
                population,
                len(group),
                verdicts.count("hung"),
                verdicts.count("slow"),
                sum(verdict not in ("serves", "answers", "slow", "hung") for verdict in verdicts),
                sum(row["suspect_s"] is not None for row in group),
                f"{median(row['load_average'] for row in group):.1f}",
                f"{median(ready):.1f}" if ready else "-",
                f"{max(ready):.1f}" if ready else "-",
                f"{max(row['log_silence_s'] for row in group):.1f}",
            )
        )
    return "\n".join(lines)


def alarms(rows: Sequence[Row]) -> str:
    """False alarms per launch: ours, of clocks from the start, and of clocks on the log's silence."""
    lines = [f"false alarms in {len(rows)} healthy starts, with 95 % intervals"]

    def add(name: str, wrong: Callable[[Row], bool]) -> None:
        count = sum(map(wrong, rows))
        low, high = interval(count, len(rows))
        lines.append(f"  {name:<28} {count:>3}   {low:5.1%} to {high:5.1%}")

    add("hung, said by Shakedown", lambda row: row["verdict"] == "hung")
    add("  suspected, then cleared", lambda row: row["suspect_s"] is not None and row["verdict"] != "hung")
    for limit_s in CLOCKS_S:
        add(f"clock of {limit_s} s", lambda row, limit_s=limit_s: late(row["ready_s"], limit_s))
    for limit_s in SILENCES_S:
        add(f"log silent for {limit_s} s", lambda row, limit_s=limit_s: row["log_silence_s"] > limit_s)
    return "\n".join(lines)


def late(ready_s: float | None, limit_s: float) -> bool:
    return ready_s is None or ready_s > limit_s


def interval(count: int, number: int) -> tuple[float, float]:
    """Wilson's 95 % interval; for none of n the rule of three: below 3/n."""
    if count == 0:
        return 0.0, min(1.0, 3 / number)
    z, share = 1.96, count / number
    middle = share + z * z / (2 * number)
    spread = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    scale = 1 + z * z / number
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


# --- hung starts -----------------------------------------------------------------------------------------

HUNG = "{:<13} {:<26} {:>3} {:>7} {:>8} {:>8} {:>8}  {:<22} {}"


def hung_table(rows: Sequence[Row]) -> str:
    head = ("engine", "hangs by", "n", "called", "median", "90 %", "max", "said", "last progress told by")
    lines = ["hung starts: seconds from the last true progress to `hung`", HUNG.format(*head)]
    for (engine, population), group in grouped(rows):
        found = latencies(group)
        lines.append(
            HUNG.format(
                engine,
                population,
                len(group),
                sum(row["latency_s"] is not None for row in group),
                *(shown(part(found, share)) for share in (0.5, 0.9, 1.0)),
                ", ".join(sorted({row["wait"] or row["verdict"] for row in group})),
                ", ".join(sorted({row["moved_by"] for row in group})),
            )
        )
    return "\n".join(lines)


def marks(rows: Sequence[Row]) -> str:
    """Kept apart: waiting, spinning in a wait, and busy in what nobody knows."""
    spinning = [row for row in rows if row["population"] in SPINNING]
    unknown = [row for row in rows if row["population"] == UNKNOWN_BUSY]
    waiting = [row for row in rows if row not in spinning and row not in unknown]
    lines = []
    for name, group, mark_s in (
        ("waiting", waiting, WAITING_MARK_S),
        ("spinning", spinning, SPINNING_MARK_S),
    ):
        if group:
            found = latencies(group)
            told = ", ".join(
                f"{what} {shown(part(found, share))} s"
                for what, share in (("median", 0.5), ("90 %", 0.9), ("max", 1.0))
            )
            kept = "kept" if part(found, 0.5) <= mark_s else "MISSED"
            lines.append(f"{name:<10} {len(group):>3} starts: {told}; mark {mark_s} s (median) {kept}")
    for row in unknown:
        noted = row["called_slow_s"]
        said = f"`slow, no progress seen` after {noted - row['moved_s']:.0f} s" if noted else "nothing said"
        lines.append(
            f"busy in an unknown loop: {row['verdict']} at the deadline, {said} (by design not hung)"
        )
    return "\n".join(lines)


def rivals(rows: Sequence[Row]) -> str:
    """On the same hung starts: a clock strikes when it strikes, however long the start has been still."""
    lines = [
        f"others on the same {len(rows)} hung starts: caught, and median seconds after the last progress"
    ]

    def add(name: str, found: Sequence[float]) -> None:
        caught = sum(one != NEVER for one in found)
        lines.append(f"  {name:<28} {caught:>3} of {len(found):<3} {shown(part(sorted(found), 0.5)):>7}")

    add("Shakedown", latencies(rows))
    for limit_s in CLOCKS_S:
        add(f"clock of {limit_s} s", [limit_s - row["moved_s"] for row in rows if row["moved_s"] < limit_s])
    for limit_s in SILENCES_S:
        said = [row["log_silence_latency_s"][str(limit_s)] for row in rows]
        add(f"log silent for {limit_s} s", [NEVER if one is None else one for one in said])
    return "\n".join(lines)


def watchdogs(rows: Sequence[Row]) -> str:
    """What an engine's own watchdog does where nobody else steps in."""
    lines = ["SGLang's own watchdog on its own stuck switches, left alone"]
    for row in rows:
        alarms = row["engine_watchdogs_s"]
        said = ", ".join(f"{name} after {at_s:.0f} s" for name, at_s in alarms.items()) or "not a word"
        watched = f"{row['said_s'] - row['moved_s']:.0f} s"
        end = "it ended" if row["verdict"] == "crashed" else f"still there after {watched}"
        lines.append(f"  {row['population']:<46} {said}; {end}")
    return "\n".join(lines)


def latencies(rows: Iterable[Row]) -> list[float]:
    return sorted(NEVER if row["latency_s"] is None else row["latency_s"] for row in rows)


def part(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else NEVER


def shown(seconds: float) -> str:
    return "never" if seconds == NEVER else f"{seconds:.1f}"


def grouped(rows: Iterable[Row]) -> Iterable[tuple[tuple[str, str], list[Row]]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["engine"], row["population"]), []).append(row)
    return groups.items()
