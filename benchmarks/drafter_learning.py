"""Held-out acceptance at equal steps: our trainer and speculators on the same text from the same weights.

    python benchmarks/drafter_learning.py [--steps 200] [--seeds 2] [--texts 96] [--sizes even|real]
        [--alone | --recipes]

A small target that is known exactly: each token's state is a vector, the next token is drawn from head times
state, and the three captured states are noisy views of this vector and the one before. Both trainers get the
same batches in the same order, AdamW with the same rates, the same three steps, the head frozen (speculators
ships so) or trained. Both are judged by the same code on text that neither saw. Some minutes a seed on a CPU;
speculators (0.9.0) must be importable, unless --alone leaves it out. With `--sizes real` the channels of the
states are as unlike as those of SmolLM2-135M (a few are 30 times larger than the rest, later layers larger
than early ones), and our trainer goes without its scales as well. --recipes sets ways to weigh what is taught
side by side instead, our trainer alone, the head trained. Each kind has a file of results of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from drafter_rivals import Document, Ours, Size, Speculators, World, masked
from torch import Tensor

from shakedown import __version__
from shakedown.drafter.architecture import AUX_STATES, Drafter
from shakedown.drafter.curves import Acceptance
from shakedown.drafter.provenance import provenance
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.scaling import channel_scales
from shakedown.drafter.vocabulary import choose_vocabulary, count_generated, share_covered

SIZE = Size(
    name="learning", hidden=64, intermediate=192, heads=4, kv_heads=2, vocab=400, draft_vocab=256, layers=12
)
LENGTH, BATCH, TEXTS, HELD_OUT = 64, 6, 96, 32
SHARPNESS = 3.0  # of the target's distribution: its best token has about a half of the probability
NOISE = 0.5  # of the captured states
DENSITY = 0.8
OURS = {
    "even": ["shakedown"],
    "real": ["shakedown", "shakedown, unscaled"],
}
RECIPES: dict[str, dict[str, Any]] = {
    "four steps, decay 0.8": {"steps": 4, "decay": 0.8},
    "three steps, decay 0.5": {"steps": 3, "decay": 0.5},
    "four, teacher at 0.5": {"steps": 4, "decay": 0.8, "teacher_temperature": 0.5},
    "four, teacher at 0.25": {"steps": 4, "decay": 0.8, "teacher_temperature": 0.25},
    "three, teacher at 0.5": {"steps": 3, "decay": 0.5, "teacher_temperature": 0.5},
}


class Source:
    """The target: writes text, and says what its states are. `sizes` [3 x hidden]: of their channels."""

    def __init__(self, seed: int, sizes: Tensor) -> None:
        self.sizes = sizes
        self.random = torch.Generator().manual_seed(seed)
        self.states = self._unit(torch.randn(SIZE.vocab, SIZE.hidden, generator=self.random))
        self.head = torch.randn(SIZE.vocab, SIZE.hidden, generator=self.random) * SHARPNESS / 8
        self.views = torch.randn(3, 2 * SIZE.hidden, SIZE.hidden, generator=self.random) * 128**-0.5

    @staticmethod
    def _unit(x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    def text(self) -> Document:
        shares = (self.states @ self.head.T).softmax(-1)
        tokens = [int(torch.randint(SIZE.vocab, (1,), generator=self.random))]
        while len(tokens) < LENGTH:
            tokens.append(int(torch.multinomial(shares[tokens[-1]], 1, generator=self.random)))
        now = self.states[tokens]
        seen = torch.cat([now, now.roll(1, 0)], dim=1)
        noise = torch.randn(LENGTH, 3 * SIZE.hidden, generator=self.random) * NOISE
        aux = (torch.cat([seen @ view for view in self.views], dim=1) + noise) * self.sizes
        whole = torch.ones(LENGTH, dtype=torch.uint8)
        return Document(tokens=torch.tensor(tokens, dtype=torch.int32), mask=whole, aux=aux, every_last=now)


def world_of(source: Source, texts: list[Document], seed: int) -> World:
    counts = count_generated(((text.tokens, text.mask) for text in texts), SIZE.vocab)
    vocabulary = choose_vocabulary(counts, SIZE.draft_vocab)
    torch.manual_seed(seed)
    drafter = Drafter(SIZE.config(), source.states)
    drafter.lm_head.weight.data.copy_(source.head[vocabulary.target_ids])
    print(f"the draft vocabulary covers {share_covered(counts, vocabulary):.1%} of the text")
    batches = [masked(texts[at : at + BATCH], DENSITY) for at in range(0, len(texts), BATCH)]
    return World(size=SIZE, drafter=drafter, vocabulary=vocabulary, head=source.head, batches=batches)


def judged(world: World, weights: dict[str, Tensor], held_out: list[Document], recipe: Recipe) -> Acceptance:
    """By our own evaluation, whoever trained the weights."""
    drafter = Drafter(SIZE.config(), world.drafter.embedding)
    drafter.load_state_dict(weights)
    judge = Ours(replace(world, drafter=drafter), torch.device("cpu"), recipe=recipe)
    judge.load([held_out])
    return judge.trainer.evaluate(judge.packs)


def theirs_as_ours(rival: Speculators, drafter: Drafter) -> dict[str, Tensor]:
    found = {name.replace("layers.0.", "midlayer."): w for name, w in rival.model.state_dict().items()}
    return {name: found[name].float() for name in drafter.state_dict()}


def sizes_of(kind: str) -> Tensor:
    """Of SmolLM2-135M's captured layers: the median channel, and the largest for two of ours."""
    if kind == "even":
        return torch.ones(3 * SIZE.hidden)
    usual, largest = torch.tensor([1.4, 2.8, 13.3]), torch.tensor([46.0, 76.0, 342.0])
    sizes = usual[:, None].repeat(1, SIZE.hidden)
    sizes[:, :2] = largest[:, None]
    return sizes.flatten()


def scaled(world: World) -> Tensor:
    """The scales of its states, with `fc` beginning as `draft train` lets it begin."""
    scales = channel_scales((text.aux for batch in world.batches for text in batch), AUX_STATES)
    world.drafter.fc.weight.data.div_(scales)
    return scales


def compare(
    seed: int, chosen: argparse.Namespace, names: list[str], *, train_head: bool
) -> list[dict[str, Any]]:
    source = Source(seed, sizes_of(chosen.sizes))
    texts = [source.text() for _ in range(chosen.texts)]
    held_out = masked([source.text() for _ in range(HELD_OUT)], DENSITY)
    recipe = Recipe(
        steps=3,
        decay=1.0,
        clip=1.0,
        beta2=0.999,
        learning_rate=2e-3,
        final_share=0.0,
        freeze_head=not train_head,
    )
    device, rows = torch.device("cpu"), []  # every one is judged by this recipe, whatever it is taught by
    start = {name: w.clone() for name, w in world_of(source, texts, seed).drafter.state_dict().items()}
    for name in names:
        world = world_of(source, texts, seed)
        if name != "speculators":
            scales = None if "unscaled" in name else scaled(world)
            own = replace(recipe, **RECIPES.get(name, {}))
            contestant: Any = Ours(world, device, recipe=own, scales=scales)
        else:
            contestant = Speculators(world, device, recipe=recipe, train_head=train_head)
        contestant.load(world.batches)
        for step in range(chosen.steps):
            contestant.step(step)
            if (step + 1) % chosen.look_every == 0:
                theirs = name == "speculators"
                weights = (
                    theirs_as_ours(contestant, world.drafter) if theirs else contestant.trainer.weights()
                )
                weights = {name: w.clone() for name, w in weights.items()}
                assert not torch.equal(weights["fc.weight"], start["fc.weight"])
                found = judged(world, weights, held_out, recipe)
                row = {"seed": seed, "trainer": name, "head": "trained" if train_head else "frozen"}
                rows.append(
                    {**row, "step": step + 1, "by_step": found.by_step, "walk": found.tokens_per_round}
                )
                print(
                    f"seed {seed} {name:24} head {row['head']:7} step {step + 1:4} {found.line()}", flush=True
                )
    return rows


def file_of(chosen: argparse.Namespace) -> str:
    kind = "" if chosen.sizes == "even" else f"_{chosen.sizes}"
    return f"drafter_learning{'_recipes' if chosen.recipes else ''}{kind}.json"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--texts", type=int, default=TEXTS, help=f"To learn from, each of {LENGTH} tokens.")
    options.add_argument("--look-every", type=int, default=50)
    options.add_argument("--sizes", choices=list(OURS), default="even")
    alone = options.add_mutually_exclusive_group()
    alone.add_argument("--alone", action="store_true")
    alone.add_argument("--recipes", action="store_true")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")  # of transformers, about what speculators calls
    print(f"shakedown {__version__}, torch {torch.__version__}")
    rows: list[dict[str, Any]] = []
    names = [*OURS[chosen.sizes], *([] if chosen.alone else ["speculators"])]
    names = list(RECIPES) if chosen.recipes else names
    file = chosen.out / file_of(chosen)
    for seed in range(chosen.seeds):
        for train_head in (True,) if chosen.recipes else (False, True):
            rows += compare(seed, chosen, names, train_head=train_head)
            found = {"provenance": provenance(), "rows": rows}
            file.write_text(json.dumps(found, indent=1) + "\n")
    print("mean over seeds at the last step        first draft accepted    tokens a round")
    for head in sorted({row["head"] for row in rows}):
        for name in names:
            last = [r for r in rows if (r["trainer"], r["head"], r["step"]) == (name, head, chosen.steps)]
            first, walk = ([r["by_step"][0] for r in last], [r["walk"] for r in last])
            means = f"{statistics.mean(first):22.3f} {statistics.mean(walk):17.3f}"
            print(f"{name:24} head {head:7} {means}")


if __name__ == "__main__":
    main()
