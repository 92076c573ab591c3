"""`shakedown check` as a user calls it: exit code, one object on standard output, nothing started."""

import json
import socket
import sys

from click.testing import CliRunner

from shakedown.cli.main import cli


def check(*words):
    return CliRunner().invoke(cli, ["check", *words], standalone_mode=True)


def test_a_machine_alone_is_looked_at_without_a_command():
    done = check("--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["verdict"]) == (0, "nothing found")
    assert {"shm-size", "ulimit-nofile"} <= {each["rule"] for each in document["findings"]}


def test_what_would_fail_is_exit_one_with_its_mend(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        model = str(tmp_path / "missing")
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            model,
            "--port",
            port,
        ]
        done = check("--json", "--", *command)
    document = json.loads(done.stdout)
    failing = {each["rule"]: each for each in document["findings"] if each["level"] == "error"}
    assert done.exit_code == 1
    assert {"port-free", "model-folder", "engine-installed"} <= set(failing)
    assert all(each["mend"] and each["engine"] == "vllm" for each in failing.values())
    assert document["verdict"] == "fails"


def test_no_secret_of_the_command_is_told():
    secret = "hf_" + "q" * 34
    done = check(
        "--json", "--", "env", f"GLOO_SOCKET_IFNAME={secret}", sys.executable, "-m", "sglang.launch_server"
    )
    assert "interface" in done.stdout
    assert secret not in done.output
