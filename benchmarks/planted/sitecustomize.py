"""Makes an engine hang as it opens its weights: this folder on PYTHONPATH, the kind in PLANTED_HANG.

Python imports it in every process of the engine before anything else. It changes no file.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "bad_servers"))

if kind := os.environ.get("PLANTED_HANG"):
    try:
        import safetensors
    except ImportError:
        pass
    else:
        from hanging import hang

        def safe_open(*given: object, **named: object) -> None:
            hang(kind)

        safetensors.safe_open = safe_open
