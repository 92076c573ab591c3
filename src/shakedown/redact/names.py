"""What a name says about its value: nothing, maybe a secret, surely one.

It looks at one name and one value at a time and never at a text.
"""

from __future__ import annotations

import enum
import functools
import re

REDACTED = "[redacted]"

_STEM = re.compile("SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION|COOKIE")
_WORD = re.compile(r"KEYS?|\w*TOKEN|PAT|AUTH|SIGNATURE|SIG|DSN|PWD")
_BEFORE_KEY = re.compile("API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION|ACCOUNT|MASTER|LICENSE|SSH")
_BEFORE_TOKEN = re.compile(
    "HF|HUB|HUGGINGFACE|ACCESS|AUTH|API|BEARER|REFRESH|SESSION|G(IT)?H(UB)?|GITLAB|BOT"
)
_TOKEN_OF_TEXT = re.compile(  # `eos_token`, `--per-token-quant`: what a tokenizer makes
    "EOS|BOS|PAD|UNK|SEP|CLS|MASK|IMAGE|VIDEO|AUDIO|STOP|SPECIAL|PER|NEXT|LAST|FIRST|NEW|MAX|MIN|NUM|DRAFT"
    "|TARGET|START|END|THINK|TOOL|MULTI|INPUT|OUTPUT|BONUS|SPECULATIVE"
)
_ABOUT = re.compile(  # `HF_TOKEN_PATH`: the value is not the secret itself
    "PATH|FILE|DIR|FOLDER|SOCK|TYPE|NAME|URL|LEN|LENGTH|SIZE|COUNT|LIMIT|IDS?|INDEX|TTL|TIMEOUT|MODE"
)
_DRAWN_BUT_KNOWN = re.compile(  # `GIT_COMMIT`, `PYTHON_SHA256`: drawn by chance, and no secret
    "SHA|MD|COMMIT|REV|REVISION|HASH|DIGEST|CHECKSUM|FINGERPRINT|VERSION|TAG|BUILD|IMAGE|BRANCH|REF|UUID|GUID"
    "|HOST|HOSTNAME|POD|NODE|WHEEL|ADDRESS"
)
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_NOTHING = re.compile(
    r"(?i)(?:none|null|true|false|yes|no|on|off|auto|empty|dummy|\$\{\w{1,64}[:?]{0,2}\}|\[redacted\])?"
)
_NUMBER = re.compile(r"\d{1,7}(?:\.\d{1,7})?")
_CREDENTIAL_LIKE = re.compile(r"(?=[^\d\n]{0,64}\d)(?=[^A-Za-z\n]{0,64}[A-Za-z])[\w+/=~-]{12,}")


class Name(enum.IntEnum):
    """How surely a name means that its value is secret."""

    PLAIN = 0
    MAYBE = 1  # a token, a key: of what, the value must tell
    SECRET = 2


@functools.lru_cache(maxsize=4096)
def judge_name(name: str) -> Name:
    words = [word.upper() for word in _NAME_WORD.findall(name) if not word.isdigit()]
    if not words or _ABOUT.fullmatch(words[-1]) or name in ("PWD", "OLDPWD"):
        return Name.PLAIN
    if any(_STEM.search(word) for word in words):
        return Name.SECRET
    pairs = list(zip(["", *words], words, strict=False))
    for before, word in pairs:
        if word in ("KEY", "KEYS") and _BEFORE_KEY.fullmatch(before):
            return Name.SECRET
        if word in ("TOKEN", "TOKENS") and _BEFORE_TOKEN.fullmatch(before):
            return Name.SECRET
    for before, word in pairs if name.isupper() else pairs[-1:]:
        if _WORD.fullmatch(word) and not _TOKEN_OF_TEXT.fullmatch(before):
            return Name.MAYBE
    return Name.PLAIN


@functools.lru_cache(maxsize=4096)
def may_be_drawn(name: str) -> bool:
    """Whether a value that looks drawn by chance is a secret under this name, which says nothing of one."""
    words = [word.upper() for word in _NAME_WORD.findall(name) if not word.isdigit()]
    if words and words[-1] != "URL" and _ABOUT.fullmatch(words[-1]):
        return False
    return not any(_DRAWN_BUT_KNOWN.fullmatch(word) for word in words)


def is_harmless(value: str) -> bool:
    """A value that gives nothing away, whatever it is the value of."""
    return bool(_NOTHING.fullmatch(value))


def is_number(value: str) -> bool:
    return bool(_NUMBER.fullmatch(value))


def given_is_secret(name: str, value: str) -> bool:
    """For a variable or a flag, where a name is seldom an accident."""
    judged = judge_name(name)
    if judged is Name.PLAIN or is_harmless(value):
        return False
    return judged is Name.SECRET or not is_number(value)


def written_is_secret(name: str, value: str) -> bool:
    """For `name: value` in prose, where "Missing key: model.layers.0" must stay readable."""
    judged = judge_name(name)
    if judged is Name.PLAIN or is_harmless(value) or value.startswith(REDACTED[:-1]):
        return False
    if value.strip("[]") == name.upper().replace("-", "_"):  # `--api-key API_KEY` of a help text
        return False
    if judged is Name.SECRET or (name.isupper() and "_" in name and not is_number(value)):
        return True
    return not name.lower().endswith(("key", "keys")) and bool(_CREDENTIAL_LIKE.fullmatch(value))
