"""A server nobody has described: ready when its URL or its log says so.

It claims to know nothing but the commonest names.
"""

from __future__ import annotations

from shakedown.core import Engine, LogprobStyle, Marker, Phase
from shakedown.engines import shared

_ESSENTIAL = shared.words("""
--model --model-path -m --model_path --tokenizer --tokenizer-path --trust-remote-code --revision
--host --port -p --api-key --api_key --device --served-model-name --config --hf-token
""")

GENERIC = Engine(
    name="generic",
    entries=(),
    markers=(
        Marker(phase=Phase.CONFIG, pattern=shared.USAGE_REFUSED),
        Marker(phase=Phase.BIND, pattern=r"INFO: +Started server process"),
        Marker(phase=Phase.READY, pattern=r"Application startup complete"),
    ),
    frame_phases=shared.FRAME_PHASES + shared.IMPORT_FRAMES,
    waits_for_child=shared.WAITS_FOR_CHILD,
    waiting_phrases=(r"Waiting for application startup",),
    noise=shared.NOISE,
    fatal=(shared.USAGE_REFUSED,),
    not_a_cause=shared.NOT_A_CAUSE,
    rank_pattern=r"^\[(?P<rank>rank\d+)\]",
    groups=(),
    switches=(),
    essential_flags=frozenset(_ESSENTIAL),
    essential_env=shared.ESSENTIAL_ENV,
    fit_flags=frozenset(),
    default_port=None,
    port_flags=("--port", "-p"),
    host_flags=("--host",),
    model_flags=("--model", "--model-path", "-m"),
    served_name_flags=("--served-model-name",),
    api_key_flags=("--api-key",),
    random_weight_settings=(("--load-format", "dummy"),),
    health_path=None,
    logprobs=LogprobStyle.ECHO,
    flags_script="",
)
