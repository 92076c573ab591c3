"""The starts of the hang benchmark: which server, made hard or made to hang how, and how often.

It launches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

HEALTHY, HUNG = "healthy", "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One launch. Starts of one `batch` go at once. `learnt`: with budgets learnt from plain starts."""

    id: str
    engine: str  # transformers, vllm (eager), compiled (vLLM again), sglang, program
    population: str  # the hardship of a healthy start, the kind of a hung one
    hung: bool
    seed: int
    batch: str
    setups: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    learnt: bool = False
    answers: bool = True  # all questions of a run are asked, a minute's work on two cores; else until one is
    left_alone: bool = False  # watched but not judged: what does the engine's own watchdog do?
    deadline_s: float = 420.0

    @property
    def real(self) -> bool:
        """Whether a real engine starts: one batch of those at a time on this machine."""
        return self.engine != "program"


# engine, population, how many, at once, setups
MADE_HARD = (
    ("transformers", "plain", 10, 1, ()),
    ("transformers", "cold caches", 10, 2, ("cold_caches",)),
    ("transformers", "slow disk", 12, 3, ("cold_caches", "slow_block_device")),
    ("transformers", "little CPU", 11, 3, ("little_cpu",)),
    ("transformers", "one core", 9, 3, ("one_core",)),
    ("transformers", "three at once", 12, 3, ()),
    ("transformers", "all of it", 6, 3, ("cold_caches", "slow_block_device", "one_core")),
    ("vllm", "plain", 4, 1, ()),
    ("vllm", "cold caches", 3, 3, ("cold_caches",)),
    ("vllm", "slow disk", 3, 3, ("cold_caches", "slow_block_device")),
    ("vllm", "little CPU", 2, 2, ("half_cpu",)),
    ("vllm", "one core", 2, 2, ("one_core",)),
    ("vllm", "three at once", 6, 3, ()),
    ("compiled", "silent compile", 2, 2, ("cold_caches",)),
    ("compiled", "one silent compiler", 2, 2, ("one_compiler",)),
    ("compiled", "compile on one core", 1, 1, ("one_core",)),
    ("sglang", "plain", 2, 2, ()),
    ("sglang", "cold caches", 1, 1, ("cold_caches",)),
    ("sglang", "slow disk", 1, 1, ("cold_caches", "slow_block_device")),
    ("sglang", "one core", 1, 1, ("one_core",)),
)

KINDS = (
    "lock", "spin", "trylock", "stopped", "peer", "blocked_socket", "fifo", "retry", "heartbeat",
    "fork_server",
)  # fmt: skip
SPINNING = frozenset({"spin", "trylock"})
UNKNOWN_BUSY = "loop"  # nobody can tell it from one long computation: said to be slow, not hung
PROGRAM_SEEDS = 5
PLANTED_SEEDS = 3
TOGETHER = 5

ABSENT_PEER = (
    "--nnodes",
    "2",
    "--node-rank",
    "0",
    "--pipeline-parallel-size",
    "2",
    "--master-port",
    "{free_port}",
)
STUCK = "SGLANG_TEST_STUCK"
WATCHDOG = ("--soft-watchdog-timeout", "300")  # two of the switches are refused without one
# engine, population, how many, setups, env, flags
BROKEN = (
    ("vllm", "absent peer", 2, (), {}, ABSENT_PEER),
    ("vllm", "FIFO weights", 2, ("fifo_weights",), {}, ()),
    ("vllm", "dead FUSE disk", 2, ("dead_disk",), {}, ()),
    ("vllm", "stopped worker, loading", 2, ("stop_worker_loading",), {}, ()),
    ("vllm", "stopped worker, serving", 1, ("stop_worker_ready",), {}, ()),
    ("vllm", "FIFO weights, talking", 1, ("fifo_weights",), {"VLLM_LOGGING_LEVEL": "DEBUG"}, ()),
    ("vllm", "lock", 1, ("plant",), {"PLANTED_HANG": "lock"}, ()),
    ("vllm", "spin", 1, ("plant",), {"PLANTED_HANG": "spin"}, ()),
    ("vllm", "blocked_socket", 1, ("plant",), {"PLANTED_HANG": "blocked_socket"}, ()),
    ("transformers", "dead FUSE disk", 2, ("dead_disk",), {}, ()),
    ("sglang", "stuck scheduler", 2, (), {f"{STUCK}_SCHEDULER_INIT": "3600"}, ()),
    ("sglang", "stuck detokenizer", 1, (), {f"{STUCK}_DETOKENIZER": "3600"}, WATCHDOG),
    ("sglang", "stuck tokenizer", 1, (), {f"{STUCK}_TOKENIZER": "3600"}, WATCHDOG),
)  # fmt: skip

STUCK_AT = {"scheduler": "SCHEDULER_INIT", "detokenizer": "DETOKENIZER", "tokenizer": "TOKENIZER"}
# place, flags: its own watchdog set short, and as it comes
WATCHDOGS = (
    ("scheduler", ("--soft-watchdog-timeout", "60")),
    ("detokenizer", ("--soft-watchdog-timeout", "60")),
    ("tokenizer", ("--soft-watchdog-timeout", "60")),
    ("scheduler", ()),
)
WATCHED = [f"stuck {place}, {'soft watchdog of 60 s' if flags else 'no flags'}" for place, flags in WATCHDOGS]


def all_starts() -> list[Start]:
    """The cheapest engine first; every other healthy start is watched with learnt budgets."""
    return [*healthy_starts(), *real_hangs(), *program_hangs(), *left_alone()]


def healthy_starts() -> Iterator[Start]:
    for engine, population, number, at_once, setups in MADE_HARD:
        for n in range(number):
            yield Start(
                id=name(engine, population, n),
                engine=engine,
                population=population,
                hung=False,
                seed=n,
                batch=name(engine, population, n // at_once, prefix="batch"),
                setups=setups,
                learnt=population != "plain" and n % 2 == 0,
                answers=engine != "transformers" or n % 10 == 0,
            )


def real_hangs() -> Iterator[Start]:
    """Planted ones and broken surroundings, some at once: they wait for the most part."""
    place = count()
    for n in range(PLANTED_SEEDS):
        for kind in KINDS:
            yield Start(
                id=name("transformers", f"planted {kind}", n),
                engine="transformers",
                population=kind,
                hung=True,
                seed=n,
                batch=f"planted-{next(place) // TOGETHER}",
                setups=("plant",),
                env={"PLANTED_HANG": kind},
                learnt=n == 2,
                deadline_s=300.0,
            )
    for engine, population, number, setups, env, flags in BROKEN:
        for n in range(number):
            yield Start(
                id=name(engine, population, n, prefix="hung"),
                engine=engine,
                population=population,
                hung=True,
                seed=n,
                batch=f"broken-{next(place) // TOGETHER}",
                setups=setups,
                env=env,
                flags=flags,
                deadline_s=300.0,
            )


def program_hangs() -> Iterator[Start]:
    for seed in range(1, PROGRAM_SEEDS + 1):
        for kind in (*KINDS, UNKNOWN_BUSY) if seed == 1 else KINDS:
            yield Start(
                id=name("program", kind, seed),
                engine="program",
                population=kind,
                hung=True,
                seed=seed,
                batch=f"program-{seed}",
                deadline_s=240.0,
            )


def left_alone() -> Iterator[Start]:
    """SGLang stuck by its own switches, nobody ending it: longer than its watchdog's default of 300 s."""
    for n, ((place, flags), population) in enumerate(zip(WATCHDOGS, WATCHED, strict=True)):
        yield Start(
            id=name("sglang", f"{place} {'60 s' if flags else 'as it comes'}", n, prefix="watchdog"),
            engine="sglang",
            population=population,
            hung=True,
            seed=n,
            batch="watchdog",
            env={f"{STUCK}_{STUCK_AT[place]}": "3600"},
            flags=flags,
            left_alone=True,
            deadline_s=450.0,
        )


def name(engine: str, population: str, n: int, prefix: str = "") -> str:
    words = [prefix, engine, *population.replace(",", "").replace("_", " ").split(), f"{n:02}"]
    return "-".join(word for word in words if word)


def chosen(only: str | None, known: set[str], limit: int | None, again: bool) -> list[list[Start]]:
    """Batches still to be run. `only` names starts by the beginning of their ids."""
    wanted = only.split(",") if only else [""]
    starts = [start for start in all_starts() if start.id.startswith(tuple(wanted))]
    if not starts:
        raise SystemExit(f"no such start: {only}; --list shows them all")
    batches: dict[str, list[Start]] = {}
    for start in starts:
        if again or start.id not in known:
            batches.setdefault(start.batch, []).append(start)
    return list(batches.values())[:limit]
