"""A small server that looks drafts up in its text, counts rounds as vLLM does, and has planted faults.

    drafting.py --port PORT [--speculative-config JSON] [any flags]

DRAFTING names a fault of the speculating server: blind (two of three rounds accept nothing), alters (a wrong
draft passes now and then), idle (it never drafts), uncounted (it tells no rounds and has no /metrics), sums
(it tells rounds in /metrics only; as SGLang nowhere, its metrics are means), dies (with its twelfth answer),
stalls (after its tenth); guesses is none: it drafts in each step, as a head does. DRAFTING_STEP_S: seconds
a step (0.003); a round costs 1.3 steps. DRAFTING_METRICS_S: seconds until /metrics answers (0). With
--speculative-num-steps it speculates as SGLang does, and answers /generate.
"""

import json
import os
import sys
import time
import zlib
from http.server import ThreadingHTTPServer

import http_model
from stand_in import given_flags

from shakedown.acceptance.lookup import Lookup

settings = {**os.environ, **given_flags(sys.argv[1:])}
speculation = json.loads(settings.get("--speculative-config", "null"))
step_s = float(settings.get("DRAFTING_STEP_S", "0.003"))
drafts = speculation["num_speculative_tokens"] if speculation else 0
drafts = int(settings.get("--speculative-num-steps", drafts))
fault = settings.get("DRAFTING", "") if drafts else ""
lookup = Lookup(shortest=1, longest=3, drafts=max(1, drafts))
counted = {"drafts": 0, "accepted_tokens": 0}
per_position = [0] * drafts
answers = 0


def likeliest_after(text: list[int]) -> dict[int, float]:
    best = next_token(text)
    return {best: -0.1, (best + 1) % 23: -3.0}


def next_token(text: list[int]) -> int:
    """What the model says next: it repeats itself a good deal, and each question in its own way."""
    chance = zlib.crc32(repr(text[-1:]).encode())
    surprise = zlib.crc32(repr((text[:8], len(text))).encode()) % 16 == 0
    return (chance + len(text) * surprise) % 23


def accepted_of(text: list[int], proposed: tuple[int, ...], number: int) -> int:
    accepted = 0
    while accepted < len(proposed) and next_token([*text, *proposed[:accepted]]) == proposed[accepted]:
        accepted += 1
    return 0 if fault == "blind" and number % 3 else accepted


class Server(http_model.Server):
    def do_GET(self) -> None:
        if self.path != "/metrics":
            return super().do_GET()
        if fault == "uncounted":
            return self.reply(404, {"detail": "Not Found"})
        time.sleep(float(settings.get("DRAFTING_METRICS_S", "0")))
        if "--speculative-num-steps" in settings:
            return self.reply(200, 'sglang:spec_accept_length{model_name="tiny"} 2.63')
        lines = ['vllm:num_requests_running{engine="0"} 0']
        if speculation:
            lines += [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {n}' for name, n in counted.items()]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{engine="0",position="{at}"}} {n}' for at, n in enumerate(per_position)]
        return self.reply(200, "\n".join(lines))

    def chat(self, body: dict) -> None:
        if not body.get("return_token_ids"):
            return super().chat(body)
        global answers
        answers += 1
        if fault == "dies" and answers > 12:
            os._exit(3)
        if fault == "stalls" and answers > 10:
            time.sleep(600)
        said = body["messages"][-1]["content"]
        prompt = [zlib.crc32(word.encode()) % 23 for word in said.split()]
        return self.draft(prompt, body["max_tokens"])

    def do_POST(self) -> None:
        if self.path != "/generate":
            return super().do_POST()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("return_logprob"):
            likeliest = [[value, token, None] for token, value in likeliest_after(body["input_ids"]).items()]
            return self.reply(200, {"output_ids": [], "meta_info": {"output_top_logprobs": [likeliest]}})
        return self.draft(body["input_ids"], body["sampling_params"]["max_new_tokens"], as_sglang=True)

    def complete(self, body: dict) -> None:
        """Asked for the likeliest tokens after some."""
        if body.get("logprobs") != 20:
            return super().complete(body)
        likeliest = {f"token_id:{token}": value for token, value in likeliest_after(body["prompt"]).items()}
        return self.reply(200, {"choices": [{"text": "", "logprobs": {"top_logprobs": [likeliest]}}]})

    def draft(self, prompt: list[int], most: int, *, as_sglang: bool = False) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        text, rounds = [*prompt], []
        while len(text) < len(prompt) + most:
            proposed = lookup.propose(text) if drafts and fault != "idle" and len(text) > len(prompt) else ()
            if fault == "guesses" and len(text) > len(prompt):
                proposed = proposed or (0,) * drafts
            time.sleep(step_s * (1.3 if proposed else 1))
            accepted = accepted_of(text, proposed, len(rounds))
            came = [*proposed[:accepted]]
            came.append(next_token([*text, *came]))
            if proposed:
                rounds.append(accepted)
                counted["drafts"] += 1
                counted["accepted_tokens"] += accepted
                for position in range(accepted):
                    per_position[position] += 1
            if fault == "alters" and len(rounds) % 7 == 3 and proposed:
                came[-1] = (came[-1] + 5) % 23
            came = came[: len(prompt) + most - len(text)]
            first = len(text) == len(prompt)
            text += came
            if as_sglang:
                about = {"completion_tokens": len(text) - len(prompt)}
                if drafts and len(text) == len(prompt) + most and fault != "sums":
                    about["spec_correct_drafts_histogram"] = [rounds.count(a) for a in range(drafts + 1)]
                self.event({"output_ids": text[len(prompt) :], "meta_info": about})
                continue
            event = {"choices": [{"delta": {"content": "x" * len(came)}, "token_ids": came}]}
            self.event({**event, "prompt_token_ids": prompt} if first else event)
        last: dict = {"choices": [], "usage": {"completion_tokens": most}}
        if rounds and fault not in {"uncounted", "sums"}:
            last["metrics"] = {"speculative_decoding": {"per_step_accepted": rounds}}
        if not as_sglang:
            self.event(last)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")


def main() -> None:
    if "--per-request-spec-decode-metrics" in settings and not drafts:  # as vLLM
        sys.exit("ValueError: --per-request-spec-decode-metrics requires speculative decoding to be enabled")
    options = http_model.options
    options.fault, options.key, options.root, options.name = "none", None, "", "tiny"
    server = ThreadingHTTPServer(("127.0.0.1", int(settings["--port"])), Server)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
