"""What every Python engine shares: torch's frames, uvicorn's lines, the web's and the hub's settings.

It names no single engine.
"""

from __future__ import annotations

from shakedown.core import Cache, ConfigValue, Phase


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Searched in "function (file" of a silent process, first match wins: what is done innermost stands first,
# and import last, for a lazy import happens inside any phase.
FRAME_PHASES: tuple[tuple[str, Phase], ...] = (
    ("capture_model (", Phase.GRAPH_CAPTURE),
    ("capture_one_batch_size (", Phase.GRAPH_CAPTURE),
    ("torch/cuda/graphs.py", Phase.GRAPH_CAPTURE),
    ("torch/_inductor/", Phase.COMPILE),
    ("torch/_dynamo/", Phase.COMPILE),
    ("torch/utils/cpp_extension.py", Phase.COMPILE),
    ("flashinfer/jit/", Phase.COMPILE),
    ("triton/compiler/", Phase.COMPILE),
    ("snapshot_download (", Phase.DOWNLOAD),
    ("hf_hub_download (", Phase.DOWNLOAD),
    ("http_get (", Phase.DOWNLOAD),
    ("safetensors_weights_iterator (", Phase.WEIGHT_LOAD),
    ("load_weights (", Phase.WEIGHT_LOAD),
    ("load_model (", Phase.WEIGHT_LOAD),
    ("_create_c10d_store (", Phase.DIST_INIT),
    ("init_process_group (", Phase.DIST_INIT),
    ("init_distributed_environment (", Phase.DIST_INIT),
    ("initialize_model_parallel (", Phase.DIST_INIT),
    ("new_group (", Phase.DIST_INIT),
)
IMPORT_FRAMES: tuple[tuple[str, Phase], ...] = (
    ("_find_and_load (<frozen importlib", Phase.IMPORT),
    ("exec_module (<frozen importlib", Phase.IMPORT),
)

# In these a process waits for another of the same launch (or serves as its clerk): never the odd one.
WAITS_FOR_CHILD: tuple[str, ...] = (
    "multiprocessing/resource_tracker.py",
    "multiprocessing/forkserver.py",
    "compile_worker/subproc_pool.py",
)

NOISE: tuple[str, ...] = (
    r"\d+%\|[^|]{0,200}\| *\d+/\d+",
    r"\d+% Completed \| \d+/\d+",
    r"(?:Deprecation|Future|User|Syntax|Resource)Warning: ",
    r"^\s+warnings\.warn\(",
    r'^\s*"""',
    r"RLIMIT_NOFILE|Found ulimit of",
    r"nanobind: leaked|^ - leaked (?:instance|type)|this is likely caused by a reference counting issue",
    r"Triton is (?:not |installed, but)",
    r"NUMA binding: Using MEMBIND",
    r"\"GET /(?:health|metrics|v1/models|model_info|get_model_info)\b[^\"]{0,80}\" \d{3}",
)

# Lines that look like errors and are the tail of an earlier one, or of nothing.
NOT_A_CAUSE: tuple[str, ...] = (
    r"resource_tracker",
    r"leaked (?:shared_memory|semaphore)",
    r"During handling of the above exception, another exception occurred",
    r"The above exception was the direct cause",
    r"For further information visit https://errors\.pydantic",
    r"Found ulimit of|RLIMIT_NOFILE",
    r"destroy_process_group\(\) was not called",
    r"Exception ignored in",
    r"asyncio\.exceptions\.CancelledError|KeyboardInterrupt",
    r"zmq\.error\.ContextTerminated",
    r"nanobind: leaked",
)

# The hub's progress bars, and the last frame of a failed download.
DOWNLOADS: tuple[str, ...] = (
    r"Fetching \d+ files: +\d+%",
    r"\.safetensors: +\d+%",
    r", in (?:snapshot_download|hf_hub_download)$",
)

# argparse and click refuse a command line with these, exit code 2; a compiler says "ops.cu(12): error: …".
USAGE_REFUSED = (
    r"^[^\s:/()]{1,80}: error: "
    r"|^Error: (?:No such (?:option|command)|Missing (?:argument|option)|Invalid value|Got unexpected extra)"
)
USAGE_SHOWN = r"^usage: \S"

_CUDA = frozenset({"cuda"})
KERNEL_CACHES: tuple[Cache, ...] = (
    Cache(variable="TRITON_CACHE_DIR", default="~/.triton/cache", devices=_CUDA),
    Cache(variable="FLASHINFER_WORKSPACE_BASE", default="~", holds=".cache/flashinfer", devices=_CUDA),
)

# Values outside of what models have; a text of ordinary length reads as well with the plain ones.
CONFIG_VALUES: tuple[ConfigValue, ...] = (
    ConfigValue(key="rope_scaling", plain="null"),
    ConfigValue(key="rope_theta", plain="10000.0", usual=(1e4, 1e8)),
    ConfigValue(key="rope_parameters.rope_theta", plain="10000.0", usual=(1e4, 1e8)),
    ConfigValue(key="rope_parameters.rope_type", plain='"default"'),
    ConfigValue(key="rms_norm_eps", plain="1e-05", usual=(1e-8, 1e-3)),
    ConfigValue(key="sliding_window", plain="null", unless_off="use_sliding_window"),
    ConfigValue(key="max_position_embeddings", plain="4096", usual=(512, 1 << 20)),
    ConfigValue(key="torch_dtype", plain='"bfloat16"', usual_words=("float16",)),
    ConfigValue(key="dtype", plain='"bfloat16"', usual_words=("float16",)),
)

# Where weights, caches and keys are found, and where the launch runs: taken away, it is another launch.
# CUDA_VERSION and NCCL_VERSION are stated by containers and read by nobody.
ESSENTIAL_ENV: frozenset[str] = frozenset(
    words("""
    PATH HOME TMPDIR LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH VIRTUAL_ENV LOCAL_RANK
    HF_HOME HF_TOKEN HF_ENDPOINT HF_HUB_OFFLINE HF_HUB_CACHE HF_DATASETS_OFFLINE HF_MODULES_CACHE
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH CUDA_VERSION CUDA_CACHE_PATH
    CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY NCCL_VERSION
    TORCH_HOME TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR
    TRITON_CACHE_DIR TRITON_HOME TRITON_PTXAS_PATH FLASHINFER_WORKSPACE_BASE
    """)
)
