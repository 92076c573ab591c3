"""Secrets go by name, by value and by shape; what only sounds like one stays."""

import base64
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Evidence, Judgement, Phase, Verdict
from shakedown.redact import REDACTED, Redactor, keyed_hash, secret_names, strip_controls

PLAIN = Redactor()


@pytest.mark.parametrize(
    "text",
    [
        "Missing key: model.layers.0.self_attn.q_proj.weight",
        "KeyError: 'model.embed_tokens.weight'",
        "eos_token: <|im_end|>, pad_token_id=2, bos_token='<s>'",
        "max_num_batched_tokens=8192, max_total_tokens: 65536",
        "api_key=None, ssl_keyfile_password=None, hf_token=True",
        "TOKENIZERS_PARALLELISM=true",
        "token: Paris, logprob: -0.05",
        "--max-total-tokens 8192 --tokenizer hf-internal/tok --tokenizer-mode auto",
        "tokens per second: 12.5, per_token_quant=fp8_w8a8_block",
        "[--api-key API_KEY [API_KEY ...]]",
        "http://127.0.0.1:8000/v1/models and git@github.com:a/b",
        "author: somebody, pattern=0123456789ab, compat=v1_2_3_4_5_6, signal: 15",
        "HF_TOKEN_PATH=/home/me/.token SSH_AUTH_SOCK=/tmp/ssh-1/agent",
        "task-1234567890123456789012 risk-aware-scheduling-of-2-requests",
    ],
)
def test_what_only_sounds_secret_stays(text):
    assert PLAIN.redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("api_key='k3y'", "k3y"),
        ("'api_key': ['first', 'second']", "second"),
        ('{"hf_token": "hush", "port": 8000}', "hush"),
        (r"{\"password\": \"hush\"}", "hush"),
        ("--api-key hush --port 8000", "hush"),
        ("['--hf-token', 'hush', '--port']", "hush"),
        ("Authorization: Bearer hush.hush", "hush"),
        ("X-API-Key: hush", "hush"),
        ("Cookie: session=hush; other=hush2", "hush"),
        ("WANDB_API_KEY=hush", "hush"),
        ("OPENAI_KEY=hush", "hush"),
        ("clientSecret: hush", "hush"),
        ("ssl-keyfile-password=hush", "hush"),
        ("token=a1b2c3d4e5f6g7h8", "a1b2c3d4e5f6g7h8"),
        ("downloading with hf_AbCdEfGhIjKlMnOpQrStUvWx", "hf_AbCdEf"),
        ("sk-proj-abc123abc123abc123abc123", "abc123"),
        ("ghp_0123456789abcdefghij0123456789", "ghp_0"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJ"),
        ("https://me:hush@host/path", "hush"),
        ("postgres://me:hu%40sh@host", "hu%40sh"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\nabc=\n-----END PRIVATE KEY-----", "MIIEvQ"),
    ],
)
def test_secrets_go_by_name_and_by_shape(text, secret):
    redacted = PLAIN.redact_text(text)
    assert secret not in redacted
    assert REDACTED in redacted
    assert PLAIN.redact_text(redacted) == redacted


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=12, max_size=60),
    st.text(),
    st.text(),
)
def test_a_known_value_goes_in_every_spelling(value, before, after):
    value = f"{value}9Z"  # not a number, None or true
    known = Redactor.of({"SOME_TOKEN": value}, ())
    raw = value.encode()
    for spelled in (value, quote(value, safe=""), raw.hex()):
        assert spelled not in known.redact_text(f"{before}{spelled}{after}")
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + raw + b"yyyyyyyy").decode()
        core = coded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        assert core not in known.redact_text(coded)


def test_values_are_learnt_from_argv_json_and_urls_too():
    known = Redactor.of(
        {"HTTPS_PROXY": "http://me:proxy-hush@proxy:80", "EXTRA": '{"auth": {"password": "json-hush-1"}}'},
        [
            "serve",
            "m",
            "--api-key",
            "argv-hush",
            "another-hush",
            "--hf-token=equals-hush",
            "env",
            "X_SECRET=env-hush-1",
        ],
    )
    for value in ("proxy-hush", "json-hush-1", "argv-hush", "another-hush", "equals-hush", "env-hush-1"):
        assert known.redact_text(f"it says {value} here") == f"it says {REDACTED} here"
    assert "hush" not in repr(known)


def test_short_and_common_values_are_not_hunted_through_the_text():
    known = Redactor.of({"A_TOKEN": "1", "B_TOKEN": "test", "C_PASSWORD": "EMPTY", "D_TOKEN": "model1"}, ())
    assert known.redact_text("1 test EMPTY, model123") == "1 test EMPTY, model123"
    assert known.redact_text("model1") == REDACTED


def test_lines_of_a_secret_of_many_lines_go_one_by_one():
    known = Redactor.of({"SSH_PRIVATE_KEY": "first-line-of-it\nsecond-line-of-it"}, ())
    assert known.redact_text("(pid 1) second-line-of-it") == f"(pid 1) {REDACTED}"


def test_argv_and_env_keep_their_form():
    argv = ["env", "HF_TOKEN=hush-hush", "vllm", "--api-key", "k", "--max-total-tokens", "8192"]
    assert PLAIN.redact_argv(argv) == (
        "env", f"HF_TOKEN={REDACTED}", "vllm", "--api-key", REDACTED, "--max-total-tokens", "8192",
    )  # fmt: skip
    assert PLAIN.redact_argv(["x", "--hf-token", "--port", "1"]) == ("x", "--hf-token", "--port", "1")
    env = {"HF_TOKEN": "hush", "PATH": "/bin", "TOKENIZERS_PARALLELISM": "true", "PROXY": "http://a:hush@b"}
    assert PLAIN.redact_env(env) == {
        "HF_TOKEN": REDACTED,
        "PATH": "/bin",
        "TOKENIZERS_PARALLELISM": "true",
        "PROXY": f"http://{REDACTED}@b",
    }
    assert secret_names(env) == ("HF_TOKEN",)


def test_the_keyed_hash_tells_the_same_from_another_and_needs_the_key():
    assert keyed_hash("hush", b"key") == keyed_hash("hush", b"key") != keyed_hash("hush2", b"key")
    assert keyed_hash("hush", b"key") != keyed_hash("hush", b"other")


def test_machine_read_text_keeps_its_own_words():
    known = Redactor.of({"A_TOKEN": "hush-hush-1"}, ())
    text = '{"flag": "--api-key", "default": "x", "help": "hush-hush-1"}'
    assert known.redact_values(text) == text.replace("hush-hush-1", REDACTED)


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "key=",
        "--api-key ",
        '"',
        "eyJ",
        "eyJ.",
        "://",
        "sk-",
        "-----BEGIN PRIVATE KEY-----",
        "\\",
        "[key='",
        "_key",
        "api_key=[",
        "Bearer ",
        "a:",
        "\x1b]",
        "\x1b[",
    ],
)
def test_hostile_lines_take_linear_time(unit):
    def seconds(size):
        text = unit * (size // len(unit))
        began = time.process_time()
        PLAIN.redact_text(strip_controls(text))
        return time.process_time() - began

    seconds(1000)
    assert seconds(1 << 18) < 2.0  # quadratic time would be minutes


def test_controls_and_escapes_go():
    assert strip_controls("a\x1b[31mb\x1b[0m\x1b]8;;http://x\x1b\\c\x07\x9b1md\u202ee\tf") == "abcde\tf"


def test_numbers_are_secret_only_behind_a_name_that_leaves_no_doubt():
    assert PLAIN.redact_env({"A_PASSWORD": "1234", "A_TOKEN": "1234"}) == {
        "A_PASSWORD": REDACTED,
        "A_TOKEN": "1234",
    }
    assert (
        PLAIN.redact_text("password: 1234, cached_token: 1234") == f"password: {REDACTED}, cached_token: 1234"
    )


def test_a_short_value_goes_in_base64_too():
    known = Redactor.of({"A_TOKEN": "sh0rt-1"}, ())
    assert REDACTED in known.redact_text(base64.b64encode(b"user:sh0rt-1!").decode())


DRAWN = {
    "base62": "TgYqDbrhaJqyo06zF9kmmF5HSvRcAHPPGJi7f782",
    "hex": "5467597144627268614a71796f30367a46396b6d",
    "base64": "VoQVIREJ9MT6Iy5xj4nU993CzJ/0+sQ2kWl8dRb=",
    "url-safe": "q3-Zk81_sTn0vXy2LcR7uWd9eKb5aHf4gJm6",
    "base36": "k2j9x0q7w3z8v1m4n6b5c2d8f9g0h1",
}


@pytest.mark.parametrize("value", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize("name", ["MY_SETTING", "VLLM_FLAVOUR", "SERVICE_URL", "x"])
def test_a_value_drawn_by_chance_is_a_secret_under_any_name(name: str, value: str) -> None:
    if name == "SERVICE_URL" and value in (DRAWN["hex"], DRAWN["base36"]):
        value = f"https://x/?v={value}"  # in a path it would be a commit
    known = Redactor.of({name: value}, ())
    secret = value.rpartition("v=")[2]
    assert secret not in known.redact_text(f"it says {secret} here")
    assert secret not in known.redact_env({name: value})[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/nix/store/8z5xrlb1zr9yvg7h3c3s6q1k2m4n5p7r-python3/bin:/usr/bin"),
        ("LS_COLORS", "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33:so=01;35:do=01;35:*.tar.gz=01;31"),
        ("MODEL", "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8"),
        ("MODEL", "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-NVFP4"),
        ("MODEL", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
        ("WEIGHTS", "/hub/models--x--y/snapshots/12fd25f77366fa6b3b4b768ec3050bf629380bac/model"),
        ("WEIGHTS", "snapshots/12fd25f77366fa6b3b4b768ec3050bf629380bac"),
        ("SOURCE", "https://github.com/a/b/raw/66d8a0f637083e2c3ddffc0cb1e65ce126afb856/setup.py"),
        ("CI_COMMIT_SHA", "12fd25f77366fa6b3b4b768ec3050bf629380bac"),
        ("PYTHON_SHA256", "8fb5f9fbc7609fa822cb31549884575db7fd9657cbffb89510b5d7975963a83a"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8f6b2c1e-1234-4abc-9def-0123456789ab"),
        ("JOB", "run-8f6b2c1e-1234-4abc-9def-0123456789ab"),
        ("INVOCATION_ID", "6f3a1b2c4d5e6f708192a3b4c5d6e7f8"),
        ("POD_NAME", "vllm-deployment-7d9f8b6c5d-x2x4z"),
        ("KERNEL", "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8"),
        ("LAYOUT", "tp8_pp2_dp4_ep32_bs128_il4096_ol1024_b200x8"),
        ("PACKAGE", "vllm-0.10.1rc2.dev395+g340ea86df.cu128-cp38-abi3-manylinux1_x86_64.whl"),
        ("MASK", "0x00000000ffff0000ffff0000ffff"),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"),
        ("STARTED", "2026-07-15T10:22:33.123456789Z"),
        ("LAST_RUN", "t-20260715-102233-5f3a"),
        ("NUMBER", "12345678901234567890123456789012"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,garbage_collection_threshold:0.8"),
        ("VLLM_EXTRA", '{"mode": 3, "cudagraph_capture_sizes": [1, 2, 4], "backend": "inductor"}'),
    ],
)
def test_what_people_name_stays(name: str, value: str) -> None:
    known = Redactor.of({name: value}, ("serve", "--some-flag", value))
    assert known.redact_text(f"it says {value} here") == f"it says {value} here"
    assert known.redact_argv(["serve", "--some-flag", value]) == ("serve", "--some-flag", value)


def test_a_flag_may_name_a_commit_but_nothing_with_both_cases() -> None:
    commit, key = "12fd25f77366fa6b3b4b768ec3050bf629380bac", DRAWN["base62"]
    known = Redactor.of({}, ["serve", "--pin", commit, "--note", key, "env", f"X={DRAWN['hex']}"])
    assert known.redact_text(f"{commit} {key} {DRAWN['hex']}") == f"{commit} {REDACTED} {REDACTED}"


def test_secrets_in_the_files_of_a_launch_are_learnt(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        f"model: m\napi-key:\n  - hush-key-1\n  - 'hush-key-2'\nport: 8000\nnote: {DRAWN['base62']} # why\n"
        "revision: 12fd25f77366fa6b3b4b768ec3050bf629380bac\n"
    )
    (tmp_path / "e").write_text("export DB_PASSWORD=hush-env-1\nMODEL=m\n")
    (tmp_path / "j.json").write_text('{"auth": {"password": "hush-json-1"}, "model": "long-model-name"}')
    (tmp_path / "t").write_text("hush-token-1\n")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hush-hub-1\n")
    argv = ["serve", "--config", "c.yaml", "--env-file=e", "--hf-config", str(tmp_path / "j.json")]
    known = Redactor.of({"HF_TOKEN_PATH": "t", "HF_HOME": str(tmp_path / "hf")}, argv, cwd=tmp_path)
    for secret in (
        "hush-key-1", "hush-key-2", DRAWN["base62"],
        "hush-env-1", "hush-json-1", "hush-token-1", "hush-hub-1",
    ):  # fmt: skip
        assert known.redact_text(f"it says {secret} here") == f"it says {REDACTED} here"
    for plain in ("8000", "12fd25f77366fa6b3b4b768ec3050bf629380bac", "long-model-name"):
        assert known.redact_text(f"it says {plain} here") == f"it says {plain} here"


def test_what_is_no_small_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_text("api-key: hush-huge\n" + "#" * (1 << 20))
    for place in ("pipe", "huge", "missing", ".", "a\0b", "x" * 5000, '{"a": 1}'):
        known = Redactor.of({}, ["serve", "--config", place], cwd=tmp_path)
        assert known.redact_text("hush-huge") == "hush-huge"


def test_the_beginning_of_a_secret_in_a_name_that_was_cut_goes() -> None:
    known = Redactor.of({"A_TOKEN": "hush-hush-hush-1234"}, ())
    assert known.redact_name("w hush-hush-hus") == f"w {REDACTED}"
    assert known.redact_name("VLLM::Worker_TP0") == "VLLM::Worker_TP0"


def test_every_text_of_a_noun_is_searched() -> None:
    known = Redactor.of({"A_TOKEN": "hush-hush-1"}, ())
    evidence = Evidence(kind="answer", text="401: hush-hush-1", at_s=1.5)
    said = Judgement(verdict=Verdict.WRONG, phase=Phase.READY, cause="x hush-hush-1", evidence=(evidence,))
    redacted = known.redact_noun(said)
    assert (redacted.verdict, redacted.phase) == (Verdict.WRONG, Phase.READY)
    assert redacted.cause == f"x {REDACTED}"
    assert redacted.evidence == (Evidence(kind="answer", text=f"401: {REDACTED}", at_s=1.5),)
