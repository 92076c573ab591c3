"""SGLang, 0.5.14 and its neighbours, on GPUs and on the CPU, as data.

Texts and flags were checked against an installed 0.5.14 and its real logs. It decides nothing.
"""

from __future__ import annotations

from shakedown.core import Cache, Engine, Fit, Layout, LogprobStyle, Mark, Marker, Phase, Siblings, Switch
from shakedown.engines import flags, shared

_MARKERS = (
    (Phase.CONFIG, r"server_args=ServerArgs\("),
    (Phase.CONFIG, shared.USAGE_SHOWN),
    (Phase.CONFIG, shared.USAGE_REFUSED),
    *((Phase.DOWNLOAD, pattern) for pattern in shared.DOWNLOADS),
    (Phase.DIST_INIT, r"Init torch distributed begin"),
    (Phase.DIST_INIT, r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks"),
    (Phase.DIST_INIT, r"sglang is using nccl=="),
    (Phase.WEIGHT_LOAD, r"Load weight begin"),
    (Phase.WEIGHT_LOAD, r"Loading safetensors checkpoint shards: +\d+% Completed"),
    (Phase.WEIGHT_LOAD, r"Multi-thread loading shards: +\d+% Completed"),
    (Phase.POST_LOAD, r"Load weight end"),
    (Phase.KV_CACHE, r"KV Cache is allocated"),
    (Phase.KV_CACHE, r"Memory pool end"),
    (Phase.GRAPH_CAPTURE, r"(?i)Capture (?:[a-z ]{1,40} )?cuda graph begin"),
    (Phase.GRAPH_CAPTURE, r"Capturing batches \(bs=\d"),
    (
        Phase.GRAPH_CAPTURE,
        r"DeepGEMM JIT Pre-Compile session|Try DeepGEMM JIT Compiling|DeepGEMM warmup: +\d",
    ),
    (Phase.WARM_UP, r"max_total_num_tokens=\d"),
    # Its own warm-up request comes only now: an open port is not ready here.
    (Phase.BIND, r"INFO: +Started server process"),
    (Phase.BIND, r"Application startup complete"),
    (Phase.BIND, r"Uvicorn running on"),
    (Phase.READY, r"The server is fired up and ready to roll"),
    (Phase.SERVING, r"Decode batch, #running-req"),
    (Phase.SERVING, r'"POST /v1/(?:chat/)?completions HTTP/[\d.]+" \d{3}'),
)

_FRAMES = (
    ("process_weights_after_loading (", Phase.POST_LOAD),
    ("init_device_graphs (", Phase.GRAPH_CAPTURE),
    ("init_cuda_graphs (", Phase.GRAPH_CAPTURE),
    ("init_decode_cuda_graph (", Phase.GRAPH_CAPTURE),
    ("init_prefill_cuda_graph (", Phase.GRAPH_CAPTURE),
    ("cuda_graph_runner.py", Phase.GRAPH_CAPTURE),
    ("_flashinfer_autotune (", Phase.WARM_UP),
    ("init_memory_pool (", Phase.KV_CACHE),
    ("init_torch_distributed (", Phase.DIST_INIT),
    ("_execute_server_warmup (", Phase.WARM_UP),
    ("prepare_server_args (", Phase.CONFIG),
)

_WAITS = (
    "_wait_for_scheduler_ready (",
    "wait_for_ready (",
    "wait_for_completion (",
    "launch_dummy_health_check_server (",
    "recv_pyobj (",  # the detokenizer without work
    "_execute_server_warmup (",  # the server waits for its own first answer
)

_ESSENTIAL = shared.words("""
--model-path --tokenizer-path --tokenizer-mode --trust-remote-code --revision --served-model-name
--is-embedding --download-dir --host --port --nccl-port --fastapi-root-path --api-key --admin-api-key
--ssl-* --enable-ssl-refresh --config --device --base-gpu-id --gpu-id-step --model-type
--decrypted-config-file --decrypted-draft-config-file --weight-version --skip-server-warmup
""")

_ESSENTIAL_ENV = shared.words("""
SGLANG_USE_CPU_ENGINE SGLANG_USE_MODELSCOPE SGLANG_CACHE_DIR SGLANG_DG_CACHE_DIR SGLANG_PORT SGLANG_HOST_IP
SGLANG_FLASHINFER_AUTOTUNE_CACHE DISABLE_OPENAPI_DOC IS_H200
""")

_FIT = shared.words("""
--tp-size --pp-size --quantization --dtype --context-length --mem-fraction-static --max-total-tokens
--cpu-offload-gb --offload-* --modelopt-quant --torchao-config
""")

_CPU = frozenset({"cpu"})
_CUDA = frozenset({"cuda"})

_FITS = (
    Fit(name="--context-length", safe="2048", harmless=(512, 2048)),
    Fit(name="--mem-fraction-static", safe=None, harmless=(0.5, 0.85), devices=_CUDA),
    Fit(name="--mem-fraction-static", safe="0.2", harmless=(0.1, 0.4), devices=_CPU),
    Fit(name="--max-total-tokens", safe=None, devices=_CUDA),
    Fit(name="--max-total-tokens", safe="8192", harmless=(2048, 65536), devices=_CPU),
    # The CPU's own pick needs kernels for AMX that few hosts have: torch's serve everywhere.
    Fit(name="--attention-backend", safe="torch_native", devices=_CPU),
)

_GRAPHS = "CUDA graphs"
_RADIX = "radix cache"
_RANKS = ("--tp-size", "--pp-size", "--dp-size")

_SWITCHES = (
    Switch(
        feature=_GRAPHS,
        argv=("--disable-cuda-graph",),
        milder=(("--cuda-graph-max-bs", "8"),),
        devices=_CUDA,
    ),
    Switch(feature=_RADIX, argv=("--disable-radix-cache",)),
    Switch(feature="overlap scheduling", argv=("--disable-overlap-schedule",)),
    Switch(feature="FlashInfer autotune", argv=("--disable-flashinfer-autotune",), devices=_CUDA),
    Switch(
        feature="custom all-reduce", argv=("--disable-custom-all-reduce",), devices=_CUDA, only_with=_RANKS
    ),
    Switch(feature="NCCL peer-to-peer", env=(("NCCL_P2P_DISABLE", "1"),), devices=_CUDA, only_with=_RANKS),
    Switch(
        feature="attention backend",
        argv=("--attention-backend", "triton"),
        settled_by=("--prefill-attention-backend", "--decode-attention-backend"),
        backend=True,
        devices=_CUDA,
    ),
    Switch(
        feature="attention backend", argv=("--attention-backend", "torch_native"), backend=True, devices=_CPU
    ),
    Switch(feature="sampling backend", argv=("--sampling-backend", "pytorch"), backend=True, devices=_CUDA),
    Switch(
        feature="DeepGEMM kernels", env=(("SGLANG_ENABLE_JIT_DEEPGEMM", "0"),), backend=True, devices=_CUDA
    ),
)

_SPECULATION = "speculative decoding"
_LAYOUT = "multi-node layout"

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (_SPECULATION, ("--speculative-*", "--enable-multi-layer-eagle")),
    (_LAYOUT, ("--nnodes", "--node-rank", "--dist-init-addr")),
    ("data parallelism", ("--dp-size", "--enable-dp-*", "--load-balance-method")),
    (
        "expert parallelism",
        shared.words("""--ep-size --ep-* --enable-ep-moe --moe-a2a-backend --deepep-* --enable-deepep-*
        --enable-eplb --eplb-* --elastic-ep-* --init-expert-location"""),
    ),
    ("hierarchical cache", ("--enable-hierarchical-cache", "--hicache-*")),
    ("LoRA", ("--enable-lora*", "--lora-*", "--max-lora*", "--max-loaded-loras")),
    ("disaggregation", ("--disaggregation-*",)),
    ("expert offload", ("--kt-*",)),
)

_HANGS_ON = (
    ("--cuda-graph-*", _GRAPHS),
    ("--*-cuda-graph*", _GRAPHS),
    ("--piecewise-cuda-graph-*", _GRAPHS),
    ("--enable-torch-compile", _GRAPHS),
    ("--torch-compile-max-bs", "--enable-torch-compile"),
    ("--radix-*", _RADIX),
    ("hierarchical cache", _RADIX),
    ("--mamba-radix-cache-strategy", _RADIX),
    ("--mamba-scheduler-strategy", _RADIX),
    ("SGLANG_*SPEC*", _SPECULATION),
    ("SGLANG_*HICACHE*", "hierarchical cache"),
    ("SGLANG_*DEEPEP*", "expert parallelism"),
)

SGLANG = Engine(
    name="sglang",
    entries=("sglang serve", "sglang.launch_server", "sglang.cli.main serve", "sglang/launch_server.py"),
    markers=tuple(Marker(phase=phase, pattern=pattern) for phase, pattern in _MARKERS),
    frame_phases=_FRAMES + shared.FRAME_PHASES + shared.IMPORT_FRAMES,
    waits_for_child=_WAITS + shared.WAITS_FOR_CHILD,
    # Idle, the loop publishes its load and checks itself: a new stack at every look for as long as it lives.
    event_loops=("Scheduler.event_loop_",),
    loop_work=("run_batch (", "process_batch_result (", "process_input_requests (", "synchronize (torch/"),
    waiting_phrases=(
        r"there are other ranks that didn't finish loading",
        r"Waiting for application startup",
        r"\"GET /health\S* HTTP/[\d.]+\" 503",
    ),
    # Whatever the interval, its first one comes while the watch still doubts: it must not calm it.
    alarms=(
        r" watchdog timeout \(",
        r" Pyspy (?:dump for|failed)| pyspy dump attempts failed",
        r" debug info:$",
    ),
    noise=(
        *shared.NOISE,
        r"Ignore import error when loading ",
        r"Capturing batches \(bs=",
        r"Only CUDA, [A-Z, a-z]{1,40} support",
        r"is still supported, but 'sglang serve' is the recommended|Example: sglang serve ",
    ),
    fatal=(
        r"\b(?:Scheduler|[A-Z]\w{1,40}(?:Manager|Controller|Router)) hit an exception",
        r"Rank \d+ scheduler died",
        r"Initialization failed\. (?:warmup error|Please see)",
        shared.USAGE_REFUSED,
    ),
    not_a_cause=(
        *shared.NOT_A_CAUSE,
        r"Received sigquit from a child proces",
        r"Ignore import error when loading ",
        r"Rank \d+ scheduler died during initialization",
        r"Initialization failed\. (?:warmup error|Please see)",
        r"hit an exception: Traceback \(most recent call last\)",
        r"Pyspy failed to dump|Pyspy dump for PID",
        r"kill_process_tree called",
    ),
    rank_pattern=r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: (?P<rank>[A-Z]+\d+(?: [A-Z]+\d+){0,5}))?\]",
    groups=_GROUPS,
    switches=_SWITCHES,
    essential_flags=frozenset(_ESSENTIAL),
    essential_env=shared.ESSENTIAL_ENV | frozenset(_ESSENTIAL_ENV),
    fit_flags=frozenset(_FIT),
    default_port=30000,
    port_flags=("--port",),
    host_flags=("--host",),
    model_flags=("--model-path", "--model"),
    served_name_flags=("--served-model-name",),
    api_key_flags=("--api-key",),
    random_weight_settings=(("--load-format", "dummy"),),
    health_path="/health",
    logprobs=LogprobStyle.ECHO,
    flags_script=flags.SGLANG_SCRIPT,
    fits=_FITS,
    hangs_on=_HANGS_ON,
    layout=Layout(group=_LAYOUT, nodes="--nnodes", splits=("--pp-size", "--tp-size")),
    own_limits=(("--dist-timeout", Phase.DIST_INIT),),
    siblings=(
        Siblings(
            flag="--attention-backend",
            values=("triton", "flashinfer", "fa3", "torch_native", "flashmla", "trtllm_mha"),
            devices=_CUDA,
        ),
        Siblings(flag="--attention-backend", values=("torch_native", "intel_amx"), devices=_CPU),
        Siblings(flag="--kv-cache-dtype", values=("auto", "bf16", "fp8_e5m2", "fp8_e4m3")),
        Siblings(flag="--load-format", values=("auto", "safetensors")),
    ),
    measured_by=(
        (
            Mark.ACCEPT_LENGTH,
            ("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model-*"),
        ),
    ),
    caches=(
        Cache(variable="TORCHINDUCTOR_CACHE_DIR", default="/tmp/torchinductor_{user}", devices=_CUDA),
        Cache(variable="SGLANG_DG_CACHE_DIR", default="~/.cache/deep_gemm", devices=_CUDA),
        *shared.KERNEL_CACHES,
    ),
    config_file_flag="--config",
    config_values=shared.CONFIG_VALUES,
    override_flag="--json-model-override-args",
    debug_argv=("--log-level", "debug"),
    debug_env=(("NCCL_DEBUG", "INFO"),),
)
