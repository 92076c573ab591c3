"""What is seen of the machine before a search begins."""

import socket
from pathlib import Path

from test_isolate_factors import VLLM_CPU, read

from shakedown.host.local import LocalHost
from shakedown.isolate.factors import factors_of
from shakedown.jobs.reading import Reading
from shakedown.jobs.surroundings import NAMED, look_around, suspicions, told


def test_a_variable_that_names_no_interface_is_told_and_suspected(tmp_path: Path):
    command = read(
        "vllm serve M --port 1", {"GLOO_SOCKET_IFNAME": "nowhere7", "OMP_NUM_THREADS": "2"}, VLLM_CPU
    )
    text = told(look_around(LocalHost(), Reading(command=command, table=VLLM_CPU, port=None, target=None)))
    assert "GLOO_SOCKET_IFNAME names no interface" in text
    factors = factors_of(command, VLLM_CPU)
    assert suspicions(text, factors) == {"GLOO_SOCKET_IFNAME=nowhere7": NAMED}
    assert suspicions("", factors) == {}


def test_a_port_that_somebody_holds_is_told():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        command = read(f"vllm serve M --port {port}", {}, VLLM_CPU)
        reading = Reading(command=command, table=VLLM_CPU, port=port, target=None)
        assert f"port {port}" in told(look_around(LocalHost(), reading))
