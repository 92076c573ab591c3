"""Canary secrets in every source, and every byte that a run or a search leaves: none of them is there."""

from __future__ import annotations

import base64
import json
import os
import random
import string
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from shakedown.host.reach import free_port

LEAKY = Path(__file__).parent / "bad_servers" / "leaky.py"


CHANCE = random.Random(20)  # of really drawn ones a few in a thousand do not look it
WORD = string.ascii_letters + string.digits


def drawn(characters: str, count: int = 40) -> str:
    return "".join(CHANCE.choice(characters) for _ in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A launch full of secrets: each by the place it stands in."""

    canaries: Mapping[str, str]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    folder: Path

    def shakedown(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "shakedown", *words],
            env=dict(self.env),
            cwd=self.folder / "work",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    canaries = {
        "innocent": drawn(WORD),
        "innocent base64": base64.b64encode(CHANCE.randbytes(30)).decode(),
        "innocent hex": CHANCE.randbytes(20).hex(),
        "innocent engine variable": drawn(WORD + "-_"),
        "telling": "short-pw+" + drawn(string.ascii_lowercase, 6),
        "telling token": drawn(WORD),
        "api key": "key/" + drawn(string.ascii_lowercase, 12),
        "json": "p&ss=" + drawn(string.ascii_lowercase, 12),
        "url": "url" + drawn(string.ascii_lowercase, 12),
        "ready url": "url" + drawn(string.ascii_lowercase, 12),
        "config key": "from-a-file-" + drawn(string.ascii_lowercase, 8),
        "config innocent": drawn(WORD),
    }
    for name in ("work", "state", "cache", "tmp", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "server.yaml").write_text(
        f"api-key: {canaries['config key']}\nnote: {canaries['config innocent']}\n"
    )
    named = {
        "MY_SETTING": canaries["innocent"],
        "SERVICE_ORIGIN": canaries["innocent base64"],
        "DEPLOY_NOTE": canaries["innocent hex"],
        "VLLM_FLAVOUR": canaries["innocent engine variable"],
        "DB_PASSWORD": canaries["telling"],
        "HF_TOKEN": canaries["telling token"],
    }
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STAND_IN_")},
        **named,
        "LEAKY_ENV": " ".join(named),
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = (
        sys.executable, str(LEAKY), "--model", "tiny", "--port", str(free_port()), "--alpha", "--beta", "3",
        "--api-key", canaries["api key"],
        "--extra", json.dumps({"depth": 2, "auth": {"password": canaries["json"]}}),
        "--origin", f"http://me:{canaries['url']}@files.example/x",
        "--config", "server.yaml",
    )  # fmt: skip
    return Scene(canaries=canaries, env=env, argv=argv, folder=tmp_path)


def spellings(secret: str) -> Iterator[bytes]:
    """The secret, its encodings, and a good half of it: the end of a name that the kernel cut."""
    raw = secret.encode()
    yield raw
    yield raw[: max(12, len(raw) // 2)]
    yield raw.hex().encode()
    yield quote(secret).encode()
    yield quote(secret, safe="").encode()
    for shift in range(3):
        core = base64.b64encode(b"\0" * shift + raw)[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        yield core
        yield core.replace(b"+", b"-").replace(b"/", b"_")


def leaks(canaries: Mapping[str, str], places: Mapping[str, bytes]) -> list[str]:
    return [
        f"{name} in {place}: …{data[max(0, data.find(spelled) - 60) : data.find(spelled) + 20]!r}"
        for place, data in places.items()
        for name, secret in canaries.items()
        for spelled in set(spellings(secret))
        if spelled in data
    ]


def left_in(folder: Path) -> dict[str, bytes]:
    """Every file but the user's own: what its name says and what it holds."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("server.yaml",)]
    return {
        str(path.relative_to(folder)): str(path.relative_to(folder)).encode() + path.read_bytes()
        for path in files
    }


class CommandLines:
    """What any process but the server itself shows of itself in /proc while it lives."""

    def __init__(self, port: str) -> None:
        self._port, self._over = port, threading.Event()
        self.seen: dict[str, bytes] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for pid in psutil.pids():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"shakedown:" in words:  # a supervisor: of it also what it was told to pass on
                        words += Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if b"shakedown" in words and b"leaky.py" not in words:
                    self.seen[f"process {pid}"] = words


def everything(scene: Scene, *done: subprocess.CompletedProcess[bytes]) -> dict[str, bytes]:
    places = left_in(scene.folder)
    for number, each in enumerate(done):
        places[f"stdout {number}"], places[f"stderr {number}"] = each.stdout, each.stderr
    return places


def reports(scene: Scene, entry: str) -> list[subprocess.CompletedProcess[bytes]]:
    kinds = ("md", "json", "html", "junit", "vllm-issue")
    made = [scene.shakedown("report", entry, "--format", kind) for kind in kinds]
    return [*made, scene.shakedown("show", entry), scene.shakedown("show", entry, "--json")]


def ready_url(scene: Scene) -> str:
    return f"http://me:{scene.canaries['ready url']}@127.0.0.1:{scene.argv[5]}/health"


def nothing_leaked(scene: Scene, places: Mapping[str, bytes]) -> None:
    assert leaks(scene.canaries, places) == []


@pytest.mark.parametrize(
    ("fault", "answer", "verdict"),
    [
        ("crash:--alpha", "", "crashed"),
        pytest.param("", "1", "crashed", marks=pytest.mark.slow),
        pytest.param("", "", "serves", marks=pytest.mark.slow),
    ],
)
def test_a_run_leaks_nothing(scene: Scene, fault: str, answer: str, verdict: str) -> None:
    scene = Scene(
        canaries=scene.canaries,
        env={**scene.env, "STAND_IN_FAULT": fault, "LEAKY_ANSWER": answer},
        argv=scene.argv,
        folder=scene.folder,
    )
    with CommandLines(scene.argv[5]) as lines:
        done = scene.shakedown("run", "--ready-url", ready_url(scene), "--json", "--", *scene.argv)
    document = json.loads(done.stdout)
    assert document["verdict"] == verdict, done.stderr
    assert any(b"shakedown:" in words for words in lines.seen.values())
    log = next(scene.folder.rglob("launch.log")).read_text()
    assert "now read 0 [redacted]" in log
    assert "--beta" in log
    if verdict == "crashed" and fault:
        assert "capture failed for [redacted]" in document["cause"]
    told = reports(scene, document["trial"])
    nothing_leaked(scene, {**everything(scene, done, *told), **lines.seen})
    assert b"${API_KEY:?}" in told[0].stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_search_leaks_nothing(scene: Scene) -> None:
    env = {**scene.env, "STAND_IN_FAULT": "crash:--alpha"}
    scene = Scene(canaries=scene.canaries, env=env, argv=scene.argv, folder=scene.folder)
    with CommandLines(scene.argv[5]) as lines:
        done = scene.shakedown("isolate", "--ready-url", ready_url(scene), "--json", "--", *scene.argv)
    document = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [factor["name"] for factor in document["cause"]["factors"]] == ["--alpha"]
    told = reports(scene, document["search"])
    nothing_leaked(scene, {**everything(scene, done, *told), **lines.seen})
    assert b"${API_KEY:?}" in told[0].stdout


def test_a_dry_run_leaks_nothing(scene: Scene) -> None:
    nodes = scene.folder / "work" / "nodes.yaml"
    both = [{"name": name, "command": scene.argv} for name in ("alpha", "beta")]
    nodes.write_text(json.dumps({"nodes": both}))  # JSON is YAML
    asked = ("--dry-run", "--ready-url", ready_url(scene))
    planned = [
        scene.shakedown("run", *asked, "--", *scene.argv),
        scene.shakedown("isolate", *asked, "--json", "--", *scene.argv),
        scene.shakedown("run", *asked, "--launch", str(nodes)),
    ]
    for each in planned:
        assert b"http://[redacted]@127.0.0.1" in each.stdout, each.stderr
    nodes.unlink()  # the user's own
    nothing_leaked(scene, everything(scene, *planned))


def test_what_is_refused_leaks_nothing(scene: Scene) -> None:
    secret = scene.canaries["api key"]
    refused = [
        scene.shakedown("isolate", "--", "bash", "start.sh", "--api-key", secret),
        scene.shakedown("run", "--", f"./{scene.canaries['innocent']}"),
        scene.shakedown("run", "--", "env", f"DB_PASSWORD={secret}"),
        scene.shakedown("isolate", "--", "env", "-i", f"DB_PASSWORD={secret}", "vllm", "serve", "m"),
    ]
    assert [each.returncode for each in refused[:2]] == [2, 2]
    nothing_leaked(scene, everything(scene, *refused))


def test_attach_keeps_the_key_it_asked_with(scene: Scene) -> None:
    key = scene.canaries["telling"]
    env = {**scene.env, "VLLM_API_KEY": key}
    program = str(LEAKY.with_name("http_model.py"))
    server = subprocess.Popen([sys.executable, program, "--key", "another"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asking = Scene(canaries=scene.canaries, env=env, argv=(), folder=scene.folder)
        done = asking.shakedown("attach", f"http://127.0.0.1:{port}", "--json")
    finally:
        server.kill()
        server.communicate()
    assert b"401" in done.stdout, done.stderr
    nothing_leaked(scene, everything(scene, done))
