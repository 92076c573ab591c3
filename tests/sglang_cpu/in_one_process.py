"""Runs in SGLang's interpreter: its scheduler and workers in this process, on a CPU, asked by a thread of it.

    in_one_process.py SETTINGS

SETTINGS is JSON: `target`, `drafter`, `out`, `prompts` (in groups, each asked at once),
`texts` (each prompt with its right answer), `tokens`, `options` of SGLang. The worker's own proposals are
written down; what is verified is the right answer, in part spoilt, so that some drafts are accepted and some
are not. Writes answers.json: of each request its tokens, the pieces they came in, its histogram, what was
cached; and proposals.json.
"""

import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from array import array
from importlib.metadata import entry_points
from pathlib import Path

SETTINGS = json.loads(Path(sys.argv[1]).read_text())
os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
OUT = Path(SETTINGS["out"])
ANSWER_S = 120.0
proposals: list = []


def main() -> None:
    import plain_kernels
    import zmq
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler

    multiprocessing.parent_process = lambda: multiprocessing.current_process()  # as in a scheduler's process
    plain_kernels.install()
    assert entry_points(group="sglang.srt.plugins")
    load_plugins()
    spoil_drafts()
    args = ServerArgs(
        model_path=SETTINGS["target"],
        speculative_draft_model_path=SETTINGS["drafter"],
        speculative_algorithm="EAGLE3",
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        device="cpu",
        attention_backend="torch_native",
        grammar_backend="none",
        dtype="float32",
        mem_fraction_static=0.2,
        max_total_tokens=2048,
        max_running_requests=4,
        skip_tokenizer_init=True,
        **SETTINGS["options"],
    )
    set_global_server_args_for_scheduler(args)
    ports = PortArgs.init_new(args)
    context = zmq.Context()
    asking, answering = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    asking.bind(ports.scheduler_input_ipc_name)
    answering.bind(ports.tokenizer_ipc_name)
    scheduler = Scheduler(args, ports, 0, 0, 0, 0, 0, 0, None)
    threading.Thread(target=ask_all, args=(asking, answering), daemon=True).start()
    scheduler.run_event_loop()


def spoil_drafts() -> None:
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    plain = EagleDraftWorker.draft

    def draft(self, batch):
        found = plain(self, batch)
        drafts = found.draft_token.view(len(batch.reqs), -1)
        for row, request, start in zip(drafts, batch.reqs, batch.seq_lens.tolist(), strict=True):
            proposals.append([request.rid, start, row.tolist()])
            text = SETTINGS["texts"][int(request.rid)]
            for at in range(start + 1, min(start + len(row), len(text))):
                row[at - start] = text[at] if (at * 2654435761 + start * 40503) % 7 > 1 else 7
        return found

    EagleDraftWorker.draft = draft


def ask_all(asking, answering) -> None:
    try:
        answers: dict = {}
        number = 0
        for group in SETTINGS["prompts"]:
            for prompt in group:
                asking.send(pickle.dumps(request_of(str(number), prompt)))
                answers[str(number)] = {"tokens": [], "pieces": [], "histogram": [], "done": False}
                number += 1
            take(answering, answers)
        (OUT / "answers.json").write_text(json.dumps(answers))
        (OUT / "proposals.json").write_text(json.dumps(proposals))
        os._exit(0)
    finally:  # the scheduler's own loop has no end
        traceback.print_exc()
        os._exit(1)


def request_of(name: str, prompt: list[int]):
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=SETTINGS["tokens"], temperature=0.0, ignore_eos=True)
    sampling.normalize(None)
    found = TokenizedGenerateReqInput(
        rid=name,
        input_text="",
        input_ids=array("q", prompt),
        mm_inputs=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=True,
    )
    found.time_stats = APIServerReqTimeStats()
    return found


def take(answering, answers: dict) -> None:
    until_s = time.monotonic() + ANSWER_S
    while not all(each["done"] for each in answers.values()):
        if not answering.poll(1000):
            assert time.monotonic() < until_s, f"no answer in {ANSWER_S:.0f} s: {answers}"
            continue
        came = pickle.loads(answering.recv())
        for n, name in enumerate(getattr(came, "rids", None) or ()):
            tokens = list(came.output_ids[n])
            answer = answers[name]
            answer["tokens"] += tokens
            answer["pieces"].append(len(tokens))
            answer["histogram"] = list(came.spec_correct_drafts_histogram[n])
            answer["cached"] = came.cached_tokens[n]
            answer["done"] = came.finished_reasons[n] is not None


if __name__ == "__main__":
    try:
        main()
    finally:
        traceback.print_exc()
        os._exit(1)
