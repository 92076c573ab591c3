"""`python -m shakedown.provision [vllm|all]`: installs engines and model ahead of a test run."""

import sys

from shakedown.errors import ShakedownError
from shakedown.provision import SGLANG, VLLM, prepare_engine, prepare_model


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


try:
    python = prepare_engine(VLLM, say)
    prepare_model(python, say)
    if sys.argv[1:] == ["all"]:
        prepare_engine(SGLANG, say)
except ShakedownError as error:
    say(f"{error.message}\n" + "\n".join(f"  hint: {hint}" for hint in error.hints))
    sys.exit(error.exit_code)
