"""`shakedown draft build`: from a target to a drafter that serves, each stage once, a page at the end."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shakedown.core import Launch
from shakedown.drafter.export import CONFIG, WEIGHTS
from shakedown.drafter.extract import plan_extraction
from shakedown.drafter.journal import SAMPLES
from shakedown.drafter.manifest import MANIFEST, read_manifest
from shakedown.drafter.memory import give_back
from shakedown.drafter.plan import Plan, QuestionsPlan, SynthPlan, read_plan
from shakedown.drafter.target import find_checkpoint, read_target
from shakedown.errors import HostProblem, UsageError
from shakedown.jobs.build_page import Build, page_of, result_of, write_page
from shakedown.jobs.draft_evaluate import EvaluateRequest, evaluate_job
from shakedown.jobs.draft_export import ExportRequest, export_job
from shakedown.jobs.draft_extract import BackendName, ExtractRequest, extract_job
from shakedown.jobs.draft_synth import synth_jobs
from shakedown.jobs.draft_train import TrainRequest, train_job
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.stages import NOTE, Done, Stage, Stages
from shakedown.jobs.synth_request import SynthRequest, digest
from shakedown.jobs.train_crew import train_in_crew

TRAIN, QUESTIONS = "train", "questions"  # the two sets of data, in the folder of the synth stage
DRAFTER = "drafter"
DRAFTER_FILES = CONFIG, WEIGHTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """`recipe` None: the defaults that fit the target."""

    target: str
    out: Path
    recipe: Path | None = None
    server: str | None = None
    trust_remote_code: bool = False


def build_job(request: BuildRequest, launch: LaunchRequest, talk: Talk) -> JobResult:
    """Does the stages that are not yet done. Raises what a stage raises, with its name."""
    target = read_target(find_checkpoint(request.target))
    plan = read_plan(request.recipe, target.hidden_size)
    first = synth_stage(request, plan, launch, talk)
    if launch.dry_run:
        return planned(request, plan)
    stages = Stages(request.out / "work", talk)
    data = stages.run(first)
    states = stages.run(extract_stage(request, plan, data, talk))
    trained = stages.run(train_stage(request, plan, states, talk))
    exported = stages.run(export_stage(request, trained))
    put_forward(exported.folder / DRAFTER, request.out / DRAFTER)
    judged = stages.run(evaluate_stage(request, plan, data, exported, talk))
    build = Build(
        target=request.target,
        drafter=request.out / DRAFTER,
        data=data.document[TRAIN],
        states=states.document,
        trained=trained.document,
        exported=exported.document,
        judged=judged.document,
        stages=stages.done,
        break_even=plan.engines.break_even,
    )
    write_page(request.out / "build.md", page_of(build))
    return result_of(build, request.out / "build.md")


def planned(request: BuildRequest, plan: Plan) -> JobResult:
    lines = [f"would build {request.out / DRAFTER} for {request.target}, with"]
    lines += [f"  {name:<9}  {told(section)}" for name, section in asdict(plan).items()]
    document = {"schema": "shakedown/1", "command": "draft build", "verdict": None, "dry_run": lines}
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def told(section: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in section.items() if value not in (None, {}))


def synth_stage(request: BuildRequest, plan: Plan, launch: LaunchRequest, talk: Talk) -> Stage:
    """Both sets of data, with one server: what is trained on, and what the drafter is judged on."""
    asked, questions = plan.synth, plan.questions
    if asked.prompts is not None and asked.prompts == questions.prompts:
        raise UsageError(
            f"[synth] and [questions] both ask {asked.prompts}: a drafter is judged on what it has not seen",
            "give one of them other prompts",
        )
    server = request.server or (None if launch.launch.argv else asked.server)
    begun = launch if launch.launch.argv or server else launched(asked.command, request.target, launch)

    def work(folder: Path) -> JobResult:
        requests = [
            synth_request(request, asked, folder / TRAIN),
            questions_request(request, asked, questions, folder / QUESTIONS),
        ]
        found = synth_jobs(requests, server, begun, talk)
        return JobResult(
            document={TRAIN: found[0].document, QUESTIONS: found[1].document},
            lines=[line for each in found for line in each.lines],
            exit_code=max((each.exit_code for each in found), key=int),
        )

    own = ("server", "command", "concurrency", "samples")  # none of them changes what a sample is
    settings = {key: value for key, value in asdict(asked).items() if key not in own}
    settings["target"], settings["questions"] = request.target, asdict(replace(questions, samples=None))
    settings["digests"] = [digest(Path(each)) for each in (asked.prompts, questions.prompts) if each]
    extent = {"samples": asked.samples, "questions": questions.samples}
    made = f"{TRAIN}/{SAMPLES}", f"{QUESTIONS}/{SAMPLES}"
    models = [find_checkpoint(request.target)]
    return Stage(
        name="synth", settings=settings, extent=extent, models=models, work=work, whole=holding(*made)
    )


def holding(*files: str) -> Callable[[Done], bool]:
    """Whether a stage's folder holds these files."""
    return lambda done: all((done.folder / file).is_file() for file in files)


def launched(command: str | None, target: str, launch: LaunchRequest) -> LaunchRequest:
    """The command of the recipe, as this shell would start it."""
    if command is None:
        raise UsageError(
            "it is not said where the target is served",
            "give --server URL, the command that starts it after --, or [synth] command in the recipe",
        )
    words = [word.replace("{target}", target) for word in shlex.split(command)]
    argv = tuple(os.path.expanduser(word) for word in words)
    return replace(launch, launch=Launch(argv=argv, env=dict(os.environ), cwd=Path.cwd()))


def synth_request(request: BuildRequest, asked: SynthPlan, folder: Path) -> SynthRequest:
    return SynthRequest.of(
        target=request.target,
        trust_remote_code=request.trust_remote_code,
        prompts=Path(asked.prompts) if asked.prompts else None,
        wanted=asked.samples,
        out=folder,
        concurrency=asked.concurrency,
        temperature=asked.temperature,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens,
        turns=asked.turns,
        keep_reasoning=asked.reasoning == "keep",
        keep_truncated=asked.keep_truncated,
        template_options=dict(asked.template_options),
    )


def questions_request(
    request: BuildRequest, asked: SynthPlan, questions: QuestionsPlan, folder: Path
) -> SynthRequest:
    """Greedy, and answers cut by the limit count: the engine drafts them to the last token too."""
    changed = replace(
        asked,
        prompts=questions.prompts,
        samples=questions.samples,
        max_tokens=questions.max_tokens,
        temperature=0.0,
        top_p=1.0,
        keep_truncated=True,
    )
    return synth_request(request, changed, folder)


def extract_stage(request: BuildRequest, plan: Plan, data: Done, talk: Talk) -> Stage:
    samples = data.folder / TRAIN / SAMPLES
    asked = plan.extract

    def work(folder: Path) -> JobResult:
        python = Path(asked.engine_python) if asked.engine_python else None
        extracted = extract_job(
            ExtractRequest(
                target=request.target,
                samples=samples,
                out=folder,
                backend=BackendName(asked.backend),
                engine_python=python,
                engine_options=dict(asked.engine_options),
                parity_sequences=asked.parity_sequences,
            ),
            talk,
        )
        give_back()  # training's first process works on the same device
        whole = plan_extraction(samples, read_target(find_checkpoint(request.target)))
        counts = {key: getattr(whole, key) for key in ("samples", "tokens", "last_rows", "state_bytes")}
        return replace(extracted, document={**extracted.document, **counts})  # not of this start alone

    settings = {"target": request.target, **asdict(asked)}
    models = [find_checkpoint(request.target)]
    return Stage(
        name="extract", settings=settings, inputs=[samples], models=models, work=work, whole=states_are_whole
    )


def states_are_whole(done: Done) -> bool:
    """Every shard is there: one that is damaged is removed by hand, so that it is captured anew."""
    if not (done.folder / MANIFEST).is_file():
        return False
    manifest = read_manifest(done.folder)
    return manifest.complete and holding(*(shard.file for shard in manifest.shards))(done)


def train_stage(request: BuildRequest, plan: Plan, states: Done, talk: Talk) -> Stage:
    processes = plan.train.processes or max(1, torch.cuda.device_count())

    def work(folder: Path) -> JobResult:
        if processes > 1:
            return train_in_crew(request.target, states.folder, folder, plan.train, processes)
        return train_job(TrainRequest.of(request.target, states.folder, folder, plan.train), talk)

    settings = {"target": request.target, **asdict(plan.train), "processes": processes}
    models = [Path(plan.train.start)] if plan.train.start else []
    return Stage(
        name="train",
        settings=settings,
        inputs=[states.folder / MANIFEST],
        models=models,
        work=work,
        whole=lambda done: trained_checkpoint(done).is_dir(),
    )


def trained_checkpoint(trained: Done) -> Path:
    """By its name alone: the note's path is that of the working directory in which it was trained."""
    return trained.folder / Path(trained.document["checkpoint"]).name


def export_stage(request: BuildRequest, trained: Done) -> Stage:
    def work(folder: Path) -> JobResult:
        checkpoint = trained_checkpoint(trained)
        shutil.rmtree(folder / DRAFTER, ignore_errors=True)  # of a start that ended before it was noted
        return export_job(ExportRequest(target=request.target, checkpoint=checkpoint, out=folder / DRAFTER))

    return Stage(
        name="export",
        settings={"target": request.target},
        inputs=[trained.folder / NOTE],
        work=work,
        whole=holding(*(f"{DRAFTER}/{file}" for file in DRAFTER_FILES)),
    )


def evaluate_stage(request: BuildRequest, plan: Plan, data: Done, exported: Done, talk: Talk) -> Stage:
    questions, drafter = data.folder / QUESTIONS / SAMPLES, exported.folder / DRAFTER

    def work(folder: Path) -> JobResult:
        asked = EvaluateRequest(
            target=request.target, drafter=drafter, samples=questions, drafts=plan.evaluate.drafts
        )
        return evaluate_job(asked, talk)

    inputs = [questions, *(drafter / file for file in DRAFTER_FILES)]
    settings = {"target": request.target, **asdict(plan.evaluate)}
    return Stage(name="evaluate", settings=settings, inputs=inputs, work=work)


def put_forward(made: Path, place: Path) -> None:
    """Makes `place` a link to the newest drafter. Raises HostProblem where something else lies there."""
    beside = place.with_name(place.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        beside.symlink_to(os.path.relpath(made, place.parent))
        os.replace(beside, place)
    except OSError as problem:
        raise HostProblem(f"{place} cannot be made a link to {made}: {problem.strerror}") from None
