"""vLLM, 0.25 to 0.32, on GPUs and on the CPU, as data.

Checked against an installed 0.32.0 and against real logs of 0.25.1 and 0.32.0. It decides nothing.
"""

from __future__ import annotations

from shakedown.core import Cache, Engine, Fit, Layout, LogprobStyle, Mark, Marker, Phase, Siblings, Switch
from shakedown.engines import flags, shared

_MARKERS = (
    (Phase.CONFIG, r"non-default args: \{"),
    (Phase.CONFIG, r"Resolved architecture: \S"),
    (Phase.CONFIG, r"Using max model len \d"),
    (Phase.CONFIG, shared.USAGE_SHOWN),
    (Phase.CONFIG, shared.USAGE_REFUSED),
    *((Phase.DOWNLOAD, pattern) for pattern in shared.DOWNLOADS),
    (Phase.DIST_INIT, r"Initializing a V1 LLM engine \("),
    (Phase.DIST_INIT, r"world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method="),
    (Phase.DIST_INIT, r"vLLM is using nccl=="),
    (Phase.WEIGHT_LOAD, r"Starting to load model"),
    (Phase.WEIGHT_LOAD, r"Loading model from scratch"),
    (Phase.WEIGHT_LOAD, r"Loading safetensors checkpoint shards: +\d+% Completed"),
    (Phase.WEIGHT_LOAD, r"Loading weights took [\d.]+ seconds"),
    (Phase.POST_LOAD, r"Model loading took [\d.]+ GiB"),
    (Phase.COMPILE, r"Warming up model for the compilation"),
    (Phase.COMPILE, r"for vLLM's torch\.compile"),
    (Phase.COMPILE, r"Dynamo bytecode transform time"),
    (Phase.COMPILE, r"Compiling a graph for compile range"),
    (Phase.COMPILE, r"torch\.compile (?:took|takes) [\d.]+ s"),
    (Phase.COMPILE, r"Initial profiling/warmup run took [\d.]+ s"),
    (Phase.KV_CACHE, r"Available KV cache memory: -?[\d.]+ GiB"),
    (Phase.KV_CACHE, r"(?:Explicitly|Auto) set \([\d./]+\) GiB for KV cache"),
    (Phase.KV_CACHE, r"(?:GPU|CPU) KV cache size: [\d,]+ tokens"),
    (Phase.KV_CACHE, r"KV cache is needed|for the cache blocks|on kv cache allocation"),  # refused
    (Phase.GRAPH_CAPTURE, r"Capturing (?:prefill |decode )?CUDA graphs? "),
    (Phase.GRAPH_CAPTURE, r"Capturing model for speculator"),
    (Phase.WARM_UP, r"Graph capturing finished in \d+ secs"),
    (Phase.WARM_UP, r"init engine \(profile, create kv cache, warmup model\) took [\d.]+ s"),
    (Phase.BIND, r"Starting vLLM (?:API )?server"),
    (Phase.BIND, r"INFO: +Started server process"),
    (Phase.READY, r"Application startup complete"),
    (Phase.SERVING, r"Engine \d+: Avg prompt throughput"),
    (Phase.SERVING, r'"POST /v1/(?:chat/)?completions HTTP/[\d.]+" \d{3}'),
)

_FRAMES = (
    ("process_weights_after_loading (", Phase.POST_LOAD),
    ("flashinfer_autotune (", Phase.WARM_UP),
    ("kernel_warmup (", Phase.WARM_UP),
    ("initialize_kv_cache", Phase.KV_CACHE),
    ("_initialize_kv_caches (", Phase.KV_CACHE),
    ("profile_run (", Phase.COMPILE),
    ("warming_up_model (", Phase.COMPILE),
    ("determine_available_memory (", Phase.COMPILE),
    ("create_engine_config (", Phase.CONFIG),
    ("init_device (", Phase.DIST_INIT),
)

_WAITS = (
    "wait_for_engine_startup (",
    "wait_for_ready (",
    "wait_for_completion_or_failure (",
    "acquire_read (",  # the leaf of MessageQueue.dequeue
    "_process_input_queue (",  # an engine core without work
    "wait_until_ready (",
)

_ESSENTIAL = shared.words("""
--model --tokenizer --tokenizer-mode --tokenizer-revision --trust-remote-code --revision --code-revision
--hf-config-path --config-format --hf-token --served-model-name --runner --convert --task --download-dir
--host --port --uds --root-path --api-key --ssl-* --enable-ssl-refresh --config --device --device-ids
--allowed-local-media-path --numa-bind*
""")

_ESSENTIAL_ENV = shared.words("""
VLLM_API_KEY VLLM_TARGET_DEVICE VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE
VLLM_USE_MODELSCOPE VLLM_MODEL_REDIRECT_PATH VLLM_CPU_KVCACHE_SPACE VLLM_NCCL_SO_PATH VLLM_CUDART_SO_PATH
CMAKE_BUILD_TYPE FORCE_COLOR NO_COLOR VERBOSE VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK
""")

_FIT = shared.words("""
--tensor-parallel-size --pipeline-parallel-size --quantization --dtype --max-model-len
--gpu-memory-utilization --kv-cache-memory-bytes --num-gpu-blocks-override --cpu-offload-gb --offload-*
--kv-offloading-* --language-model-only VLLM_CPU_KVCACHE_SPACE
""")

_FITS = (
    Fit(name="--max-model-len", safe="2048", harmless=(512, 2048)),
    Fit(name="--kv-cache-memory-bytes", safe=None, devices=frozenset({"cuda"})),
    # On the CPU nothing would take its place: without it 0.32 took 14 of 24 GB.
    Fit(
        name="--kv-cache-memory-bytes",
        safe=str(2**30),
        harmless=(2**28, 2**32),
        devices=frozenset({"cpu"}),
    ),
    Fit(name="VLLM_CPU_KVCACHE_SPACE", safe="1", harmless=(1, 4)),
    Fit(name="--gpu-memory-utilization", safe="0.8", harmless=(0.5, 0.85), devices=frozenset({"cuda"})),
    Fit(name="--gpu-memory-utilization", safe="0.2", harmless=(0.1, 0.3), devices=frozenset({"cpu"})),
)

_COMPILE = "compilation and CUDA graphs"
_RANKS = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
_CUDA = frozenset({"cuda"})

# Wherever somebody tried both, another graph mode did as much as no graphs at all.
_GRAPH_MODES = (
    ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'),
    ("--compilation-config", '{"cudagraph_mode": "NONE"}'),
)

_SWITCHES = (
    Switch(feature=_COMPILE, argv=("--enforce-eager",), milder=_GRAPH_MODES, devices=_CUDA),
    Switch(feature=_COMPILE, argv=("--enforce-eager",), devices=frozenset({"cpu"})),
    Switch(feature="prefix caching", argv=("--no-enable-prefix-caching",)),
    # Without chunks a whole context is one batch: offered only where the context is bounded (and made short).
    Switch(feature="chunked prefill", argv=("--no-enable-chunked-prefill",), only_with=("--max-model-len",)),
    # The CPU platform switches asynchronous scheduling and FlashInfer off itself.
    Switch(feature="asynchronous scheduling", argv=("--no-async-scheduling",), devices=_CUDA),
    Switch(feature="FlashInfer autotune", argv=("--no-enable-flashinfer-autotune",), devices=_CUDA),
    Switch(
        feature="custom all-reduce", argv=("--disable-custom-all-reduce",), devices=_CUDA, only_with=_RANKS
    ),
    Switch(feature="NCCL peer-to-peer", env=(("NCCL_P2P_DISABLE", "1"),), devices=_CUDA, only_with=_RANKS),
    Switch(feature="NCCL NVLink SHARP", env=(("NCCL_NVLS_ENABLE", "0"),), devices=_CUDA, only_with=_RANKS),
    Switch(
        feature="attention backend",
        argv=("--attention-backend", "TRITON_ATTN"),
        settled_by=("--attention-config", "VLLM_ATTENTION_BACKEND"),
        backend=True,
        devices=_CUDA,
    ),
    Switch(
        feature="sampling backend", env=(("VLLM_USE_FLASHINFER_SAMPLER", "0"),), backend=True, devices=_CUDA
    ),
    Switch(
        feature="DeepGEMM kernels",
        env=(("VLLM_USE_DEEP_GEMM", "0"),),
        settled_by=("VLLM_MOE_USE_DEEP_GEMM",),
        backend=True,
        devices=_CUDA,
    ),
)

_SPECULATION = "speculative decoding"
_LAYOUT = "multi-node layout"

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # The last one is refused without speculation.
    (_SPECULATION, ("--speculative-*", "-sc", "--spec-*", "--per-request-spec-decode-metrics")),
    (_LAYOUT, ("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless")),
    ("data parallelism", ("--data-parallel-*", "--api-server-count", "--dp-sync-interval")),
    (
        "expert parallelism",
        shared.words("""--enable-expert-parallel --enable-eplb --eplb-config --all2all-backend --enable-ep-*
        --expert-placement-strategy --enable-elastic-ep --elastic-ep-*"""),
    ),
    (
        "LoRA",
        shared.words("""--enable-lora --lora-* --max-lora* --max-cpu-loras --fully-sharded-loras
        --default-mm-loras --enable-tower-connector-lora"""),
    ),
    (
        "tool calling",
        shared.words("""--enable-auto-tool-choice --tool-call-parser --tool-parser-plugin
        --tool-strict-level --exclude-tools-when-tool-choice-none"""),
    ),
    ("reasoning", ("--reasoning-parser*", "--reasoning-config")),
    (
        "decode context parallelism",
        ("--decode-context-parallel-size", "--dcp-*", "--cp-kv-cache-interleave-size"),
    ),
)

_HANGS_ON = (
    ("--compilation-config", _COMPILE),
    ("--optimization-level", _COMPILE),
    ("--cudagraph-*", _COMPILE),
    ("--max-cudagraph-capture-size", _COMPILE),
    ("VLLM_*COMPILE*", _COMPILE),
    ("VLLM_*CUDAGRAPH*", _COMPILE),
    ("--prefix-cach*", "prefix caching"),
    ("--mamba-cache-mode", "prefix caching"),
    # A long context or a small batch is refused without chunks.
    ("--max-model-len", "chunked prefill"),
    ("--max-num-batched-tokens", "chunked prefill"),
    ("--long-prefill-token-threshold*", "chunked prefill"),
    ("VLLM_*SPEC*", _SPECULATION),
)

VLLM = Engine(
    name="vllm",
    entries=(
        "vllm serve",
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.launchers.api_server",
        "vllm.entrypoints.cli.main serve",
        "vllm/entrypoints/openai/api_server.py",
    ),
    markers=tuple(Marker(phase=phase, pattern=pattern) for phase, pattern in _MARKERS),
    frame_phases=_FRAMES + shared.FRAME_PHASES + shared.IMPORT_FRAMES,
    waits_for_child=_WAITS + shared.WAITS_FOR_CHILD,
    waiting_phrases=(
        # 5 of 5 healthy compiled starts print it, and real deadlocks do too.
        r"No available shared memory broadcast block found in \d+ seconds",
        r"Waiting for \d+ local, \d+ remote core engine proc",
        r"Waiting for READY message from DP Coordinator",
        r"Waiting for application startup",
    ),
    noise=(
        *shared.NOISE,
        r"Route: /\S+, Methods: ",
        r"Available routes are:",
        r"\[api_utils\.py:\d+\] [ ▄█▀]",
        r"\[shutdown\] ",
    ),
    fatal=(
        r"WorkerProc failed to start",
        r"WorkerProc hit an exception",
        r"Worker proc \S+ died unexpectedly",
        r"EngineCore failed to start",
        r"EngineCore encountered a fatal error",
        r"Engine core initialization failed",
        r"custom_all_reduce\.cuh:\d+ '",
        shared.USAGE_REFUSED,
    ),
    not_a_cause=(
        *shared.NOT_A_CAUSE,
        r"Engine core initialization failed\. See root cause above",
        r"WorkerProc initialization failed due to an exception in a background process",
        r"EngineDeadError|AsyncLLM output_handler failed",
        r"(?:EngineCore|WorkerProc) (?:failed to start|hit an exception|encountered a fatal error)",
        r"Dumping (?:input data|scheduler (?:output|stats)) ",
        r"Parent process exited, terminating worker queues",
        r"\[shutdown\] ",
    ),
    rank_pattern=r"^\((?P<rank>[A-Za-z][\w-]*) pid=(?P<pid>\d+)\)",
    groups=_GROUPS,
    switches=_SWITCHES,
    essential_flags=frozenset(_ESSENTIAL),
    essential_env=shared.ESSENTIAL_ENV | frozenset(_ESSENTIAL_ENV),
    fit_flags=frozenset(_FIT),
    default_port=8000,
    port_flags=("--port",),
    host_flags=("--host",),
    model_flags=("--model",),
    served_name_flags=("--served-model-name",),
    api_key_flags=("--api-key",),
    random_weight_settings=(("--load-format", "dummy"),),
    health_path="/health",
    logprobs=LogprobStyle.PROMPT_LOGPROBS,
    flags_script=flags.VLLM_SCRIPT,
    fits=_FITS,
    hangs_on=_HANGS_ON,
    layout=Layout(
        group=_LAYOUT,
        nodes="--nnodes",
        splits=("--pipeline-parallel-size", "--tensor-parallel-size"),
        replicas="--data-parallel-size",
    ),
    # VLLM_ENGINE_READY_TIMEOUT_S=20 never fired in a start of 94 s, so it is none.
    own_limits=(
        ("--distributed-timeout-seconds", Phase.DIST_INIT),
        ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", Phase.SERVING),
    ),
    siblings=(
        Siblings(
            flag="--attention-backend",
            values=("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION"),
            devices=_CUDA,
        ),
        Siblings(flag="--kv-cache-dtype", values=("auto", "bfloat16", "fp8_e5m2", "fp8_e4m3")),
        Siblings(flag="--load-format", values=("auto", "safetensors")),
    ),
    measured_by=((Mark.ACCEPT_LENGTH, ("--speculative-config", "--spec-*")),),
    blinded_by=((Mark.ACCEPT_LENGTH, ("--disable-log-stats",)),),  # /metrics counts no rounds then
    caches=(
        Cache(variable="VLLM_CACHE_ROOT", default="~/.cache/vllm", holds="torch_compile_cache", of=_COMPILE),
        *shared.KERNEL_CACHES,
    ),
    config_file_flag="--config",
    config_values=shared.CONFIG_VALUES,
    override_flag="--hf-overrides",
    debug_env=(("VLLM_LOGGING_LEVEL", "DEBUG"), ("NCCL_DEBUG", "INFO")),
)
