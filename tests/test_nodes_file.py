"""Launch files: what they say, what is wrong with one, and that a written one reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.errors import UsageError
from shakedown.nodes import Node, NodesFile, read_nodes, write_nodes

FILE = """
variables: {model: m, port: 29500}
env: {NCCL_DEBUG: INFO, ADDRESS: "{{address}}:{{port}}", FLAG: on}
command: vllm serve {{model}} --nnodes {{nodes}} --node-rank {{rank}} --master-addr {{master}} --name "a b"
nodes:
  - {name: alpha, address: 10.0.0.1}
  - name: beta
    address: 10.0.0.2
    env: {GLOO_SOCKET_IFNAME: eth9}
    command: [serve, "{{name}}", "{{ model }} x", 7]
"""


def test_shared_variables_are_filled_in_after_the_command_is_split():
    alpha, beta = read_nodes(FILE, "two.yaml").nodes
    assert alpha.argv[:5] == ("vllm", "serve", "m", "--nnodes", "2")
    assert alpha.argv[5:] == ("--node-rank", "0", "--master-addr", "10.0.0.1", "--name", "a b")
    assert beta.argv == ("serve", "beta", "m x", "7")
    assert dict(beta.env) == {
        "ADDRESS": "10.0.0.2:29500",
        "FLAG": "1",
        "GLOO_SOCKET_IFNAME": "eth9",
        "NCCL_DEBUG": "INFO",
    }
    assert (beta.title, read_nodes(FILE, "").serves) == ("node beta (rank 1)", 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: [", "line 1: no YAML"),
        ("- a", "a launch file is a mapping"),
        ("nodes: [{address: a}]", "two nodes or more"),
        ("command: x\nnodes: [{}, {}]\nport: 3", "'port' is no key"),
        ("command: x\nnodes: [{}, {adress: b}]", "node 1: 'adress' is no key"),
        ("nodes: [{}, {}]", "node 0 has no command"),
        ("command: x {{port}}\nnodes: [{}, {}]", "{{port}} is not known"),
        ("command: x {{master}}\nnodes: [{}, {}]", "{{master}} needs the `address` of node 0"),
        ("command: x\nnodes: [{name: a}, {name: a}]", "two nodes are called 'a'"),
        ("command: x\nnodes: [{name: a/b}, {}]", "'a/b' is no name"),
        ("command: x\nserves: c\nnodes: [{}, {}]", "`serves` names 'c'"),
        ("command: 'x \"'\nnodes: [{}, {}]", "cannot be split"),
        ("command: x\nvariables: {rank: 3}\nnodes: [{}, {}]", "{{rank}} is set by Shakedown itself"),
        ("variables: {a: '{{b}}', b: '{{a}}'}\ncommand: x {{a}}\nnodes: [{}, {}]", "round in a circle"),
        ("command: x\nenv: [a]\nnodes: [{}, {}]", "`env` must map"),
        ("command: !!python/object/apply:os.system [ls]\nnodes: [{}, {}]", "no YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(text: str, said: str):
    with pytest.raises(UsageError) as caught:
        read_nodes(text, "two.yaml")
    assert "two.yaml" in caught.value.message
    assert said in caught.value.message


words = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}"), min_size=1, max_size=20
)


@given(
    st.lists(words, min_size=1, max_size=6),
    st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), words),
)
def test_a_written_file_reads_back(argv: list[str], env: dict[str, str]):
    nodes = tuple(
        Node(
            name=name,
            rank=rank,
            address="10.0.0.1",
            argv=tuple(argv),
            env=tuple(sorted(env.items())),
            unset=("X",),
        )
        for rank, name in enumerate("ab")
    )
    file = NodesFile(nodes=nodes, serves=1)
    assert read_nodes(write_nodes(file), "") == file
