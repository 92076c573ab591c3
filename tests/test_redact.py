"""Secrets go by name, by value and by shape; what only sounds like one stays."""

import base64
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
