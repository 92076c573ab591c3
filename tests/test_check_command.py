"""`shakedown check` as a user calls it: exit code, one object on standard output, nothing started."""

import json
import socket
import sys

from click.testing import CliRunner
from eagle3_directories import healthy_config, write_drafter, write_target

from shakedown.cli.main import cli
from shakedown.core import Launch
from shakedown.engines import parse
from shakedown.host.local import LocalHost
from shakedown.host.reach import free_port
from shakedown.jobs.rungs import model_config


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


NEW_SGLANG = {
    "llama": "class LlamaForCausalLM:\n    def set_eagle3_layers_to_capture(self, layer_ids):\n"
    "        self.capture = [val + 1 for val in layer_ids]\nEntryClass = LlamaForCausalLM\n",
    "llama_eagle3": 'class LlamaForCausalLMEagle3: x = "norm_before_residual"\n'
    "EntryClass = [LlamaForCausalLMEagle3]\n",
}


def drafter_errors(*command):
    found = json.loads(check("--json", "--", sys.executable, *map(str, command)).stdout)["findings"]
    return {f["rule"]: f for f in found if f["rule"].startswith("drafter-") and f["level"] == "error"}


def test_a_drafter_is_linted_for_the_engine_that_the_launch_has(tmp_path, monkeypatch):
    """This one honours what every SGLang known so far ignores."""
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    config = {**healthy_config(), "norm_before_residual": True}
    (drafter / "config.json").write_text(json.dumps(config))
    command = ["-m", "sglang.launch_server", "--model-path", target, "--speculative-algorithm", "EAGLE3"]
    command += ["--speculative-draft-model-path", drafter]
    assert len(drafter_errors(*command)) == 1
    models = tmp_path / "site" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "site" / "sglang" / "__init__.py").touch()
    for name, text in NEW_SGLANG.items():
        (models / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert drafter_errors(*command) == {}


def test_of_each_rule_the_worst_is_told_and_where(tmp_path):
    """vLLM's V1 runner drafts nothing past the drafter's own length; the last version's V2 runner does."""
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    config = {**healthy_config(), "max_position_embeddings": 1024}
    (drafter / "config.json").write_text(json.dumps(config))
    told = json.dumps({"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3})
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", target, "--speculative-config", told]
    ((_, found),) = drafter_errors(*command).items()
    assert "(V1 runner)" in found["evidence"]
    assert "0.32.0 (V2 runner)" not in found["evidence"]


VLLM = ("-m", "vllm.entrypoints.openai.api_server", "--model", "m")


def rules(document, level):
    return {each["rule"] for each in document["findings"] if each["level"] == level}


def test_an_interpreter_that_does_not_start_is_found_once():
    done = check("--json", "--", "/nonexistent/python", *VLLM)
    document = json.loads(done.stdout)
    assert (done.exit_code, document["verdict"]) == (1, "fails")
    assert [each["rule"] for each in document["findings"]] == ["interpreter"]
    assert "/nonexistent/python: No such file" in document["findings"][0]["evidence"]


def test_what_could_not_be_looked_at_is_no_answer(tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    (tmp_path / "python3").chmod(0o755)
    done = check("--json", "--", str(tmp_path / "python3"), *VLLM)
    document = json.loads(done.stdout)
    assert (done.exit_code, document["verdict"]) == (125, None)
    assert {each["level"] for each in document["findings"]} == {"unknown"}
    assert check("--", str(tmp_path / "python3"), *VLLM).stdout.startswith("nothing could be looked at\n")


def test_without_a_model_the_current_folder_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["Mine"], "num_hidden_layers": 9}')
    done = check("--json", "--", sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    document = json.loads(done.stdout)
    assert rules(document, "error") == {"engine-installed"}
    assert not any(each["rule"].startswith("model") for each in document["findings"])
    launch = Launch(argv=("vllm", "serve"), env={}, cwd=tmp_path)
    assert model_config(parse(launch, None), LocalHost()) == {}


def test_a_program_that_is_not_there_is_named():
    for program, where in (("/nonexistent/server", "/"), ("no-such-server", "the PATH")):
        done = check("--json", "--", program, "--port", str(free_port()))
        document = json.loads(done.stdout)
        failing = {each["rule"]: each for each in document["findings"] if each["level"] == "error"}
        assert (done.exit_code, list(failing)) == (1, ["program"])
        assert failing["program"]["evidence"].startswith(f"{program}, looked for in {where}")
