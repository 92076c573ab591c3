"""Imports flow one way: the edges of the design as a dict, read from the source by AST."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "shakedown"

LEAVES = {"core", "errors", "redact"}
ROOMS = {"engines", "host", "ledger", "watch", "probe", "isolate", "acceptance", "report", "rungs"}
EDGES: dict[str, set[str]] = {
    "core": set(),
    "errors": set(),
    "redact": set(),
    **{room: LEAVES for room in ROOMS},
    "provision": LEAVES,
    "launch": LEAVES | {"engines", "host"},
    "trial": LEAVES | ROOMS - {"isolate", "acceptance", "report"} | {"launch"},
    "drafter": LEAVES | {"engines", "launch", "trial"},
    "nodes": LEAVES | {"engines", "watch", "launch", "trial"},
    "jobs": LEAVES | ROOMS | {"launch", "trial", "provision", "drafter", "nodes"},
    "cli": LEAVES | {"jobs", "report"},
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shakedown"):
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
            rooms.update(name for name in names if name != "__version__")
        elif isinstance(node, ast.Import):
            rooms.update(a.name.split(".")[1] for a in node.names if a.name.startswith("shakedown."))
    return rooms


def test_every_import_follows_an_edge():
    broken = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path)
        if room in {"__init__", "__main__"}:
            continue
        for target in imported_rooms(path) - {room}:
            if target not in EDGES[room]:
                broken.append(f"{path.relative_to(SOURCE)} imports {target}")
    assert not broken, "\n".join(broken)


def test_importing_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, shakedown.cli.main;"
        "print(*[m for m in ('torch', 'numpy', 'httpx', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
