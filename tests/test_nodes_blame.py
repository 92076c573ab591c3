"""Whose fault it is: views of nodes in, blame out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Experiment, Factor, FactorKind, Judgement, Phase, Purpose, Suspect, Verdict, Wait
from shakedown.nodes import JointFactors, Node
from shakedown.nodes.blame import blame, is_over, waiting_in_vain
from shakedown.nodes.clocks import Offset, compare, is_before
from shakedown.nodes.network import Network, Reached, odd_settings, right_setting
from shakedown.nodes.telling import judge
from shakedown.nodes.views import Kind, View
from shakedown.watch import State

NAMES = ("alpha", "beta", "gamma", "delta")


def node(rank: int) -> Node:
    return Node(name=NAMES[rank], rank=rank, address=f"10.0.0.{rank + 1}", argv=("x",))


def view(rank: int, verdict: Verdict | None = None, cause: str = "it waits", **facts: object) -> View:
    wait = facts.pop("wait", Wait.WAITING if verdict is Verdict.HUNG else None)
    phase = facts.pop("phase", Phase.DIST_INIT)
    frame = facts.pop("frame", "")
    judgement = None
    if verdict is not None:
        suspect = Suspect(pid=1, name="worker", frame=str(frame), wchan="")
        judgement = Judgement(
            verdict=verdict, phase=phase, cause=cause, fingerprint=cause, wait=wait, suspect=suspect
        )
    return View(node=node(rank), phase=phase, judgement=judgement, **facts)


def hung(rank: int, **facts: object) -> View:
    return view(rank, Verdict.HUNG, **facts)


def died(rank: int, cause: str, **facts: object) -> View:
    return view(rank, Verdict.CRASHED, cause, **facts)


def blamed(*views: View) -> tuple[str, Kind]:
    found = blame(views)
    return (found.view.node.name if found.view else "", found.kind)


def test_one_that_waits_is_no_verdict_while_another_moves():
    views = [hung(0), view(1, state=State.MOVING)]
    assert not is_over(views, 500)
    assert waiting_in_vain(views, 500) == [views[0]]
    assert is_over([hung(0), hung(1)], 500)


def test_who_speaks_of_itself_is_believed_before_who_speaks_of_others():
    lost = died(0, "RuntimeError: Connection closed by peer", error_s=3.0)
    own = died(1, "RuntimeError: no kernel image is available", error_s=5.0)
    assert blamed(lost, own) == ("beta", Kind.DEAD)
    assert not is_over([died(0, "Broken pipe", judged_s=10.0), view(1)], 15.0)
    assert is_over([died(0, "no kernel image", judged_s=10.0), view(1)], 15.0)


def test_of_two_that_speak_of_themselves_the_first_on_one_clock():
    late, early = died(0, "no kernel a", error_s=5.0), died(1, "no kernel b", error_s=4.0)
    assert blamed(late, early) == ("beta", Kind.DEAD)
    unsure = died(1, "no kernel b", error_s=4.0, uncertain_s=2.0)
    assert blamed(late, unsure) == ("alpha", Kind.DEAD)  # the clocks cannot tell


def test_complaints_alone_lead_to_the_silent_one():
    assert blamed(died(0, "Timed out waiting for 1 clients"), hung(1, phase=Phase.IMPORT)) == (
        "beta",
        Kind.LATE,
    )


def test_a_stopped_node_is_named_and_not_those_that_wait_for_it():
    assert blamed(hung(0), hung(1, wait=Wait.STOPPED)) == ("beta", Kind.SILENT)


def test_a_setting_that_does_not_fit_is_named():
    assert blamed(hung(0), hung(1, odd=("GLOO_SOCKET_IFNAME=eth9",))) == ("beta", Kind.SILENT)


def test_a_launch_has_died_also_where_the_node_to_blame_says_nothing():
    views = [
        died(0, "Gloo connectFullMesh failed: Connection refused"),
        view(1, odd=("GLOO_SOCKET_IFNAME=lo, x",)),
    ]
    judgement = judge(blame(views), views, 20.0)
    assert (judgement.verdict, judgement.node) == (Verdict.CRASHED, "beta")
    assert judgement.fingerprint == "beta: GLOO_SOCKET_IFNAME=lo"
    assert judgement.cause.endswith("node alpha (rank 0): Gloo connectFullMesh failed: Connection refused")
    assert judgement.suspect.name == "alpha: worker"


def no_way(peer: str) -> Network:
    return Network(
        interfaces={}, reached=(Reached(peer=peer, address="10.0.0.9", port=1, problem="no answer"),)
    )


def test_the_node_that_nobody_reaches_is_cut_off():
    views = [
        hung(0, network=no_way("gamma")),
        hung(1, network=no_way("gamma")),
        hung(2, network=no_way("alpha")),
    ]
    assert blamed(*views) == ("gamma", Kind.CUT_OFF)
    told = blame(views).why
    assert "alpha, beta" in told
    assert "no answer" in told


def test_one_that_has_opened_nothing_is_late():
    busy = Network(interfaces={}, listening=(("10.0.0.1", 29500),))
    idle = Network(interfaces={}, listening=(("127.0.0.1", 8000),))
    assert blamed(hung(0, network=busy), hung(1, network=idle)) == ("beta", Kind.LATE)


def test_the_last_in_phase_is_late_and_the_odd_one_of_many_is_named():
    assert blamed(hung(0), hung(1, phase=Phase.WEIGHT_LOAD), hung(2, phase=Phase.CONFIG)) == (
        "gamma",
        Kind.LATE,
    )
    views = [hung(rank, frame="all_reduce" if rank != 2 else "recv") for rank in range(4)]
    assert blamed(*views) == ("gamma", Kind.SILENT)


def test_silence_that_began_clearly_first_is_named_and_else_nobody():
    assert blamed(hung(0, moved_s=20.0), hung(1, moved_s=3.0)) == ("beta", Kind.SILENT)
    assert blamed(hung(0, moved_s=3.5), hung(1, moved_s=3.0)) == ("", Kind.NOBODY)


def test_out_of_reach_is_no_verdict_on_the_launch():
    views = [hung(0), view(1, unreachable_s=130.0)]
    assert blamed(*views) == ("beta", Kind.UNREACHABLE)
    judgement = judge(blame(views), views, 200.0)
    assert (judgement.verdict, judgement.environment, judgement.node, judgement.rank) == (
        Verdict.UNDECIDED, True, "beta", 1,
    )  # fmt: skip
    assert not is_over([hung(0), view(1, unreachable_s=20.0)], 200.0)


def test_not_started_is_said_at_once():
    views = [view(0), view(1, refused="no such program: x")]
    assert is_over(views, 0.0)
    assert judge(blame(views), views, 0.0).cause == "node beta (rank 1) was not started: no such program: x"


verdicts = st.sampled_from([Verdict.HUNG, Verdict.CRASHED])
ends = st.tuples(
    verdicts,
    st.sampled_from(["Connection reset", "no kernel"]),
    st.sampled_from(list(Phase)[:6]),
    st.floats(0, 99),
)


@given(st.lists(ends, min_size=2, max_size=4))
def test_every_failure_has_a_sentence_and_a_fingerprint_that_does_not_depend_on_times(ends):
    views = [
        view(rank, verdict, cause, phase=phase, moved_s=s)
        for rank, (verdict, cause, phase, s) in enumerate(ends)
    ]
    judgement = judge(blame(views), views, 100.0)
    assert judgement.cause
    assert not judgement.serves
    assert judgement.fingerprint.partition(": ")[0] in (*NAMES, "all nodes")


@given(st.floats(-1e6, 1e6), st.floats(0, 5), st.floats(0, 5))
def test_a_clock_is_known_to_within_half_of_the_way_there_and_back(offset: float, there: float, back: float):
    now = [100.0]

    def theirs() -> float:
        now[0] += there
        shown = now[0] + offset
        now[0] += back
        return shown

    found = compare(theirs, lambda: now[0])
    assert abs(found.seconds - offset) <= found.within_s + 1e-6
    assert found.ours(50.0 + offset) == 50.0 + offset - found.seconds
    assert Offset().uncertain_s(1e9) == 0.0
    assert is_before(1.0, 2.0, 1.5) is None


def test_interfaces_and_addresses_that_are_not_there_are_odd():
    network = Network(interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.2", "ib0": ""})
    env = {"GLOO_SOCKET_IFNAME": "eth9", "NCCL_SOCKET_IFNAME": "eth", "VLLM_HOST_IP": "10.0.0.7"}
    odd = [name for name, _ in odd_settings(env, network, "10.0.0.2")]
    assert odd == ["GLOO_SOCKET_IFNAME", "VLLM_HOST_IP"]
    assert odd_settings({"GLOO_SOCKET_IFNAME": "lo"}, network, "127.0.0.1") == ()
    assert odd_settings({"GLOO_SOCKET_IFNAME": "lo"}, network, "10.0.0.2")
    assert odd_settings({"NCCL_SOCKET_IFNAME": "^docker0"}, network, "10.0.0.2") == ()
    assert right_setting("GLOO_SOCKET_IFNAME", "10.0.0.2", network) == "eth0"
    assert right_setting("VLLM_HOST_IP", "10.0.0.2", network) == "10.0.0.2"
    assert right_setting("NCCL_DEBUG", "10.0.0.2", network) is None


def factor(name: str, was: str = "", **facts: object) -> Factor:
    return Factor(name=name, kind=FactorKind.FLAG, was=was or name, now="removed", **facts)


def test_what_all_nodes_have_alike_is_one_factor_and_the_rest_is_a_node_s_own():
    shared = [factor("--a", drop_argv=(rank,)) for rank in (3, 5)]
    own = factor("GLOO=x", drop_env=("GLOO",), needs=frozenset({"--a"}))
    joint = JointFactors.of([("alpha", [shared[0]]), ("beta", [shared[1], own, factor("--a #2")])])
    names = [it.name for it in joint.factors]
    assert names == ["--a", "beta: GLOO=x", "beta: --a #2"]
    assert joint.factors[1].needs == {"--a"}
    kept = Experiment(
        kept=frozenset({"--a", "beta: GLOO=x"}),
        purpose=Purpose.SPLIT,
        reason="",
        substitutes=(("beta: GLOO=x", ("GLOO=y",)),),
    )
    assert joint.experiment_of(0, kept).kept == {"--a"}
    assert joint.experiment_of(0, kept).substitutes == ()
    assert joint.experiment_of(1, kept).kept == {"--a", "GLOO=x"}
    assert joint.experiment_of(1, kept).substitutes == (("GLOO=x", ("GLOO=y",)),)
