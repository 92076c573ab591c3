"""Two nodes with addresses of their own, launched, judged and isolated as one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from two_nodes import PROGRAM, TwoNodes, launch_file, two_nodes

from shakedown.core import Judgement, Launch, Run, Verdict, Wait
from shakedown.engines import engine_named
from shakedown.host.namespaced import NamespacedHost
from shakedown.nodes import Crew, Station, read_nodes, run_nodes
from shakedown.trial import Subject
from shakedown.watch import Limits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
HURRIED = Limits(quiet_s=1.0, suspect_s=3.0, round_s=0.5, rounds=2)
# The healthy node must have come as far as listening: on a busy machine its Python takes seconds to begin.
PATIENT = Limits(quiet_s=2.0, suspect_s=20.0, round_s=0.5, rounds=2)


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as found:
        yield found


def pids_in(nodes: TwoNodes) -> set[int]:
    found = set()
    for name in nodes.names:
        told = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        found |= set(map(int, told.stdout.split()))
    return found


def judged(
    nodes: TwoNodes,
    port: int,
    folder: Path,
    *env: dict[str, str],
    host: Callable[[], NamespacedHost] = NamespacedHost,
    left: bool = False,
    limits: Limits = HURRIED,
) -> Judgement:
    """The launch watched by a hurried watch, with nothing asked of its server."""
    file = read_nodes(launch_file(nodes, port, env=env or ({}, {})), "two.yaml")
    engine = engine_named("generic")
    stations = tuple(
        Station(
            node=node,
            host=host(),
            launch=Launch(argv=node.argv, env={**os.environ, **dict(node.env)}, cwd=folder),
            engine=engine,
            env=dict(node.env),
            own_network=True,
            inside=("ip", "netns", "exec", node.name, sys.executable, "-"),
            limits=limits,
        )
        for node in file.nodes
    )
    launch = Launch(argv=("two",), env={}, cwd=folder)
    subject = Subject(title="two", launch=launch, engine=engine, port=None, target=None)
    result = run_nodes(Crew(stations=stations), subject, folder / "run", lambda seen: None)
    assert result.ending is not None
    assert not result.ending.left
    assert left or not pids_in(nodes)
    return result.judgement


def test_an_interface_that_the_other_cannot_reach_is_named_with_its_node(nodes, port, tmp_path):
    found = judged(nodes, port, tmp_path, {}, {"GLOO_SOCKET_IFNAME": "lo"})
    assert (found.verdict, found.wait) == (Verdict.HUNG, Wait.WAITING)
    assert (found.node, found.rank) == (nodes.names[1], 1)
    assert f"node {nodes.names[1]} (rank 1) has GLOO_SOCKET_IFNAME=lo" in found.cause


def test_a_route_that_swallows_all_is_named_with_both_ends(nodes, port, tmp_path):
    nodes.blackhole(0)
    found = judged(nodes, port, tmp_path)
    assert found.verdict is Verdict.HUNG
    assert (found.node, found.rank) == (nodes.names[1], 1)
    assert f"cut off from {nodes.names[0]}" in found.cause
    stands = [it.text for it in found.evidence if it.kind == "node"]
    assert any("no way to" in text for text in stands)
    assert all("its clock is ours to within" in text for text in stands)


def test_a_node_that_never_arrives_is_late(nodes, port, tmp_path):
    found = judged(nodes, port, tmp_path, {}, {"PAIR_FAULT": "sleep:1"}, limits=PATIENT)
    assert (found.verdict, found.node, found.rank) == (Verdict.HUNG, nodes.names[1], 1)
    assert "is late" in found.cause


def test_a_node_whose_program_is_missing_was_not_started_and_the_other_is_ended(nodes, port, tmp_path):
    gone = launch_file(nodes, port).replace(str(PROGRAM), str(tmp_path / "nothing.py"), 0)
    file = read_nodes(gone, "two.yaml")
    engine = engine_named("generic")
    argvs = (file.nodes[0].argv, (str(tmp_path / "nothing"),))
    stations = tuple(
        Station(
            node=node,
            host=NamespacedHost(),
            launch=Launch(argv=argv, env=dict(os.environ), cwd=tmp_path),
            engine=engine,
            env={},
            own_network=True,
        )
        for node, argv in zip(file.nodes, argvs, strict=True)
    )
    subject = Subject(title="two", launch=stations[0].launch, engine=engine, port=None, target=None)
    found = run_nodes(Crew(stations=stations), subject, tmp_path / "run", lambda seen: None).judgement
    assert (found.verdict, found.environment, found.rank) == (Verdict.UNDECIDED, True, 1)
    assert "was not started: no such program" in found.cause
    assert not pids_in(nodes)


def test_the_node_that_died_first_is_blamed_and_not_the_one_that_lost_it(shakedown, nodes, port, tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(launch_file(nodes, port, env=({}, {"PAIR_FAULT": "die:1"})))
    said = shakedown("run", "--launch", str(file))
    assert (said.code, said.document["verdict"]) == (1, "crashed")
    assert said.document["node"] == {"name": nodes.names[1], "rank": 1}
    assert "no kernel image" in said.document["cause"]


def test_a_variable_of_one_node_is_proven_and_the_file_handed_back_serves(shakedown, nodes, port, tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(
        launch_file(nodes, port, "--alpha", "--beta", "3", env=({}, {"GLOO_SOCKET_IFNAME": "eth9"}))
    )
    begun = shakedown("isolate", "--launch", str(file), "--max-launches", "2").document["search"]
    refused = shakedown("isolate", "--resume", begun)
    assert refused.code == 2
    whole = f"--resume {begun} --ledger {tmp_path / 'ledger.db'} --launch {file}"
    assert whole in refused.document["hints"][0]
    said = shakedown("isolate", "--resume", begun, "--launch", str(file))
    found = said.document
    assert (said.code, found["launches"]) == (0, 4)
    assert [it["name"] for it in found["cause"]["factors"]] == [f"{nodes.names[1]}: GLOO_SOCKET_IFNAME=eth9"]
    assert {it["name"] for it in found["cleared"]} == {"--alpha", "--beta 3"}
    assert found["workaround"]["changes"] == [
        f"{nodes.names[1]}: GLOO_SOCKET_IFNAME=eth9: replaced by GLOO_SOCKET_IFNAME=eth0"
    ]
    argv = found["workaround"]["argv"]
    assert argv[:3] == ["shakedown", "run", "--launch"]
    again = shakedown("run", "--launch", argv[3])
    assert (again.code, again.document["verdict"]) == (0, "serves")
    assert not pids_in(nodes)


def test_nodes_on_far_machines_are_judged_alike_and_their_clocks_are_asked(shakedown, nodes, port, tmp_path):
    text = launch_file(nodes, port, "--host", "{{address}}", env=({}, {"GLOO_SOCKET_IFNAME": "eth9"}))
    text = text.replace("'ip', 'netns', 'exec', '{{name}}', ", "")
    (tmp_path / "two.yaml").write_text(text.replace("'env': {", "'via': 'ip netns exec {{name}}', 'env': {"))
    said = shakedown("run", "--launch", str(tmp_path / "two.yaml"))
    assert (said.code, said.document["node"]["rank"]) == (1, 1)
    assert "Unable to find address for: eth9" in said.document["cause"]
    stands = [it["text"] for it in said.document["evidence"] if it["kind"] == "node"]
    assert all("its clock is ours to within 0.0" in text for text in stands)
    assert not pids_in(nodes)


def test_what_cannot_be_launched_together_is_refused_with_its_node(shakedown, port, tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text("command: [x]\nnodes: [{host: root@box}, {}]\n")
    said = shakedown("run", "--launch", str(file), launch=("x",))
    assert (said.code, "give no CMD" in said.document["error"]) == (2, True)
    file.write_text("command: [x]\nnodes: [{}]\n")
    assert "two nodes or more" in shakedown("run", "--launch", str(file)).document["error"]
    file.write_text("command: [sh, -c, x]\nnodes: [{}, {}]\n")
    assert "no --keep" in shakedown("run", "--launch", str(file), "--keep").document["error"]
    said = shakedown("run", "--launch", str(file), "--host", "box")
    assert "each node of the file" in said.document["error"]


def test_a_lost_host_holds_up_nobody_and_is_left_to_its_supervisor(nodes, port, tmp_path, monkeypatch):
    """Two minutes of silence are two seconds here."""
    monkeypatch.setattr("shakedown.nodes.views.UNREACHABLE_S", 2.0)
    monkeypatch.setattr("shakedown.nodes.blame.UNREACHABLE_S", 2.0)
    monkeypatch.setattr("shakedown.nodes.crew.LONGEST_STEP_S", 0.5)
    hosts: list[LosingHost] = []

    def host() -> NamespacedHost:
        hosts.append(LosingHost())
        return hosts[-1] if len(hosts) == 2 else NamespacedHost()

    found = judged(nodes, port, tmp_path, {}, {"PAIR_FAULT": "sleep:1"}, host=host, left=True)
    hosts[1].back.set()
    assert (found.verdict, found.environment, found.rank) == (Verdict.UNDECIDED, True, 1)
    assert any(it.kind == "still alive" and "not seen to end" in it.text for it in found.evidence)
    hosts[1].end(hosts[1].runs[0], grace_s=0.0)
    assert not pids_in(nodes)


class LosingHost(NamespacedHost):
    """Its readings come back only once `back` is set, as over a connection that broke."""

    def __init__(self) -> None:
        super().__init__()
        self.back = threading.Event()
        self.runs: list[Run] = []

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        self.runs.append(super().start(launch, folder, detach=detach))
        return self.runs[-1]

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        self.back.wait(60)
        return super().read_log(run, offset)
