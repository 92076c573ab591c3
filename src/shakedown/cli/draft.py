"""The commands of `shakedown draft`: one per stage of making an EAGLE-3 drafter, and the chain of them all.

It never decides anything; a job, and torch with it, is imported only when its command runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakedown.cli.finish import finish
from shakedown.cli.options import Number, Url, apply_all, command_argument, json_option, server_options
from shakedown.cli.output import choose_talk

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult

FITTING = "Left out, what fits the target:"


@click.group()
def draft() -> None:
    """Make an EAGLE-3 drafter for a model, from data to one directory that serves."""


class JsonObject(click.ParamType[dict[str, Any]]):
    """`{"enable_thinking": false}`."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as problem:
            self.fail(f"{value!r} is not JSON: {problem}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return found


target_options = apply_all(
    click.option("--target", metavar="M", required=True, help="The model to draft for: folder or name."),
    click.option("--trust-remote-code", is_flag=True, help="Let its tokenizer bring code of its own."),
)


@draft.command()
@command_argument
@target_options
@click.option("--server", type=Url(), metavar="URL", help="Where it is served; or give the command: -- CMD.")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON Lines of messages, turns or text; `built-in` for ours. Left out: the target writes them.",
)
@click.option("--samples", type=click.IntRange(1), help="Conversations. Left out: each prompt once, or 1000.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder.")
@click.option("--concurrency", type=click.IntRange(1, 4096), default=64, show_default=True)
@click.option("--temperature", type=Number(0, 10), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=Number(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=1024, show_default=True, help="Of one answer.")
@click.option(
    "--turns",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="That the target writes itself.",
)
@click.option(
    "--reasoning",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Of a thinking model.",
)
@click.option("--keep-truncated", is_flag=True, help="Keep answers that --max-tokens cut.")
@click.option(
    "--template-options", type=JsonObject(), metavar="JSON", help='As in {"enable_thinking": false}.'
)
@server_options
def synth(
    command: tuple[str, ...],
    as_json: bool,
    target: str,
    trust_remote_code: bool,
    server: str | None,
    prompts: Path | None,
    samples: int | None,
    out: Path,
    concurrency: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
    turns: int,
    reasoning: str,
    keep_truncated: bool,
    template_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Let the target answer prompts, or write its own; goes on where a kill left it."""

    def job() -> JobResult:
        from shakedown.jobs.draft_synth import synth_job
        from shakedown.jobs.request import LaunchRequest
        from shakedown.jobs.synth_request import SynthRequest

        request = SynthRequest.of(
            target=target,
            trust_remote_code=trust_remote_code,
            server=server,
            prompts=prompts,
            wanted=samples,
            out=out,
            concurrency=concurrency,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            turns=turns,
            keep_reasoning=reasoning == "keep",
            keep_truncated=keep_truncated,
            template_options=template_options or {},
        )
        return synth_job(request, LaunchRequest.here(command, **options), choose_talk())

    finish("draft synth", as_json, job)


@draft.command()
@click.option("--target", metavar="M", required=True, help="The model to draft for: folder or name.")
@click.option(
    "--samples",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="From `draft synth`.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder.")
@click.option(
    "--backend",
    type=click.Choice(["transformers", "vllm", "sglang"]),
    default="transformers",
    show_default=True,
    help="What computes the states; an engine's are first held against the reference's.",
)
@click.option(
    "--engine-python",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The Python that has vLLM or SGLang, where it is not this one.",
)
@click.option(
    "--engine-options", type=JsonObject(), metavar="JSON", help='As in {"tensor_parallel_size": 8}.'
)
@click.option(
    "--device", metavar="D", help="For transformers: cuda, cuda:1, cpu. Left out: a GPU if there is one."
)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True)
@click.option("--batch-tokens", type=click.IntRange(1), help="For transformers: computed at once.")
@click.option(
    "--streamed/--whole",
    default=None,
    help="For transformers: a layer in memory at a time, or all. Left out: all, if they fit.",
)
@click.option(
    "--parity-sequences",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Held against the reference before an engine's long capture.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be captured and its size; capture nothing.")
@json_option
def extract(as_json: bool, engine_options: dict[str, Any] | None, **options: Any) -> None:
    """Capture the target's hidden states on samples; goes on where a kill left it."""

    def job() -> JobResult:
        from shakedown.jobs.draft_extract import ExtractRequest, extract_job

        return extract_job(ExtractRequest(engine_options=engine_options or {}, **options), choose_talk())

    finish("draft extract", as_json, job)


@draft.command()
@click.option("--target", metavar="M", required=True, help="The model to draft for: folder or name.")
@click.option(
    "--states",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="From `draft extract`.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder.")
@click.option(
    "--from",
    "start",
    metavar="D",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Begin with this EAGLE-3 directory.",
)
@click.option("--steps", type=click.IntRange(1, 16), default=7, show_default=True, help="Drafts in a row.")
@click.option("--epochs", type=click.IntRange(1), help=f"{FITTING} 5, above width 4096 3.")
@click.option(
    "--draft-vocab", type=click.IntRange(1), help="Tokens that can be drafted. Left out: D's, or 32000."
)
@click.option(
    "--intermediate", type=click.IntRange(1), help="Width of the drafter's MLP. Left out: the target's."
)
@click.option(
    "--learning-rate",
    type=Number(0, min_open=True),
    help=f"{FITTING} 2e-4, up to width 1024 1e-3.",
)
@click.option("--decay", type=Number(0, 1, min_open=True), default=0.8, show_default=True)
@click.option(
    "--teacher-temperature",
    type=Number(0, min_open=True),
    help="Of the target's distribution as it is taught: below 1 its choice stands out. "
    f"{FITTING} 1, up to width 1024 0.5.",
)
@click.option(
    "--pack-rows",
    type=click.IntRange(2),
    help="Loss tokens of a batch, on all GPUs together: 2.2 GB a thousand at width 4096. "
    f"{FITTING} 16384, up to width 1024 4096.",
)
@click.option("--batch-packs", type=click.IntRange(1), help="So many packs a batch, each of --pack-rows.")
@click.option("--freeze-head", is_flag=True, help="Keep the output rows as they begin: a tenth faster.")
@click.option("--held-out", type=Number(0, 0.5), default=0.05, show_default=True, help="Share.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--evaluate-steps", type=click.IntRange(1), default=100, show_default=True)
@click.option("--checkpoint-steps", type=click.IntRange(1), default=200, show_default=True)
@json_option
def train(as_json: bool, **options: Any) -> None:
    """Train a drafter on states; goes on where a kill left it.

    On N GPUs: torchrun --standalone --nproc-per-node N -m shakedown draft train …
    """

    leads = os.environ.get("RANK", "0") == "0"  # of torchrun's processes the first answers for all

    def job() -> JobResult:
        from shakedown.jobs.draft_train import TrainRequest, train_job

        result = train_job(TrainRequest.asked(**options), choose_talk())
        if not leads:
            sys.exit(int(result.exit_code))
        return result

    finish("draft train", as_json and leads, job)
