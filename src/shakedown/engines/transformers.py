"""`transformers serve`, as data: one process, no log-probabilities, no list of models.

It decides nothing.
"""

from __future__ import annotations

from shakedown.core import Engine, LogprobStyle, Marker, Phase
from shakedown.engines import flags, shared

_MARKERS = (
    (Phase.CONFIG, shared.USAGE_SHOWN),
    (Phase.CONFIG, shared.USAGE_REFUSED),
    *((Phase.DOWNLOAD, pattern) for pattern in shared.DOWNLOADS),
    (Phase.WEIGHT_LOAD, r"\[transformers\] Loading \S"),
    (Phase.WEIGHT_LOAD, r"Loading (?:weights|checkpoint shards): +\d+%"),
    (Phase.BIND, r"INFO: +Started server process"),
    (Phase.READY, r"Application startup complete"),
    (Phase.SERVING, r'"POST /v1/(?:chat/)?completions HTTP/[\d.]+" \d{3}'),
)

_ESSENTIAL = shared.words(
    "--force-model --host --port --device --trust-remote-code --non-blocking --model-timeout"
)

TRANSFORMERS = Engine(
    name="transformers",
    entries=("transformers serve", "transformers.cli.transformers serve"),
    markers=tuple(Marker(phase=phase, pattern=pattern) for phase, pattern in _MARKERS),
    frame_phases=(
        ("from_pretrained (", Phase.WEIGHT_LOAD),
        *shared.FRAME_PHASES,
        *shared.IMPORT_FRAMES,
    ),
    waits_for_child=shared.WAITS_FOR_CHILD,
    waiting_phrases=(r"Waiting for application startup",),
    noise=shared.NOISE,
    fatal=(shared.USAGE_REFUSED,),
    not_a_cause=shared.NOT_A_CAUSE,
    rank_pattern=r"^\[(?P<rank>rank\d+)\]",
    groups=(("continuous batching", ("--continuous-batching", "--cb-*")),),
    switches=(),
    essential_flags=frozenset(_ESSENTIAL),
    essential_env=shared.ESSENTIAL_ENV,
    fit_flags=frozenset({"--quantization", "--dtype"}),
    default_port=8000,
    port_flags=("--port",),
    host_flags=("--host",),
    model_flags=("--force-model",),
    served_name_flags=(),
    api_key_flags=(),
    random_weight_settings=(),
    health_path="/health",
    logprobs=LogprobStyle.NONE,
    config_values=shared.CONFIG_VALUES,
    flags_script=flags.TRANSFORMERS_SCRIPT,
)
