"""A tiny OpenAI-style server with a tiny model (it continues as the text went on before), and its faults.

    http_model.py [--fault NAME] [--key KEY] [--root /path] [--name MODEL]
                  [--pace TOKENS_A_SECOND] [--noise SHARE] [--wait SECONDS] [--accept TOKENS_A_ROUND]

Prints its port. The model is an induction head: it looks for the last words earlier in the text. It streams
as fast as it can, or at a pace that differs by up to that share from request to request, after a wait. With
--accept it counts rounds of speculation as vLLM does in /metrics, and as SGLang does in /generate.
"""

import argparse
import json
import os
import random
import re
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = re.findall(r" \w+", " the rain came and she went home with a letter from her brother")
IDS: dict[str, int] = {}
VOCABULARY: list[str] = []
CHAT_FIELDS = {"model", "messages", "prompt", "max_tokens", "temperature", "stream"}
options = argparse.Namespace(pace=0.0, noise=0.0, wait=0.0, accept=0.0)
rounds = {"drafts": 0.0, "accepted_tokens": 0.0}
busy: list[int] = []
seen: list[str] = []  # what a server that is `late` has been asked
stuck = threading.Event()


def chance(*parts: object) -> float:
    return zlib.crc32(repr(parts).encode()) / 2**32


def split(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+", text)


def name_of(token: str) -> int:
    if token not in IDS:
        IDS[token] = len(VOCABULARY)
        VOCABULARY.append(token)
    return IDS[token]


def recall(context: list[str]) -> str | None:
    for length in (4, 3, 2, 1):
        tail = [token.strip() for token in context[-length:]]
        for start in range(len(context) - length - 1, -1, -1):
            if [token.strip() for token in context[start : start + length]] == tail:
                return " " + context[start + length].strip()
    return None


def following(context: list[str]) -> str:
    fault = options.fault
    if fault == "loop":
        return "!"
    lost = fault in {"random", "constant", "nan"} or (fault == "pair" and len(busy) > 1)
    lost = lost or (fault == "forgets" and context[-1].strip() == "is")
    return (None if lost else recall(context)) or WORDS[int(chance(context[-3:]) * len(WORDS))]


def logprob(context: list[str], token: str, decoding: bool) -> float:
    fault = options.fault
    if fault == "nan":
        return float("nan")
    if fault == "constant":
        return -10.8
    if fault == "random":
        return -9 - 4 * chance(context[-2:], token)
    if fault == "logits":
        return 3 + 9 * chance(context[-2:], token)
    known = (recall(context) or "").strip() == token.strip()
    value = -(0.1 if known else 1.5) - 2 * chance(context[-2:], token) - 0.01 * decoding
    return -0.4 if fault == "decode" and decoding else value * (2 if fault == "decode" else 1)


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, value: object) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self) -> bool:
        if options.key and self.headers.get("authorization") != f"Bearer {options.key}":
            self.reply(401, {"error": f"Unauthorized: {self.headers.get('authorization')}"})
            return False
        return True

    def is_late(self) -> bool:
        """It listens before it has loaded; how long that takes is counted in requests."""
        fault = options.fault
        if fault == "ready_page" and self.command == "POST" and len(seen) < 8:
            os._exit(3)  # it was asked before its own page had said that it is ready
        late = (
            fault == "no_routes"
            or (fault == "ready_page" and self.path == "/ready")
            or (fault in {"loads", "loads_for_ever"} and self.command == "POST")
        )
        if not late or (len(seen) >= 8 and fault != "loads_for_ever"):
            return False
        seen.append(self.path)
        status = 503 if fault.startswith("loads") else 404
        self.reply(status, {"error": {"message": "Not Found" if status == 404 else "Loading model"}})
        return True

    def do_GET(self) -> None:
        path = self.path.removeprefix(options.root)
        if self.is_late():
            return
        if path in {"/health", "/ready"}:
            self.reply(503 if options.fault == "starting" else 200, {})
        elif path == "/v1/models" and options.fault == "strict":
            self.reply(500, {"detail": "no such folder"})
        elif path == "/v1/models":
            if self.allowed():
                self.reply(200, {"data": [{"id": options.name}]})
        elif path == "/metrics" and options.accept and options.fault != "no_metrics":
            lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {n}' for name, n in rounds.items()]
            self.reply(200, "\n".join(lines))
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path, fault = self.path.removeprefix(options.root), options.fault
        if self.is_late():
            return None
        if not self.path.startswith(options.root) or fault == "no_api":
            return self.reply(404, {"detail": "Not Found"})
        if not self.allowed():
            return None
        if path == "/generate" and options.accept:
            return self.reply(200, {"text": "", "meta_info": {"spec_accept_length": options.accept}})
        if fault == "die":
            os._exit(3)
        if fault == "silent" or stuck.is_set():
            time.sleep(600)
        if fault == "engine_dead":
            return self.reply(
                500, {"error": {"message": "EngineDeadError: 0x7f12 is \x1b[31mgone", "code": 500}}
            )
        if body.get("model", options.name) != options.name and fault != "strict":
            return self.reply(404, {"error": {"message": f"The model {body['model']} does not exist."}})
        if fault in {"strict", "chat_only"} and not set(body) <= CHAT_FIELDS:
            return self.reply(422, {"detail": f"Unexpected fields in the request: {set(body) - CHAT_FIELDS}"})
        if body.get("logprobs") is not None and self.failed_at_logprobs():
            return None
        busy.append(1)
        try:
            return self.chat(body) if path.endswith("chat/completions") else self.complete(body)
        finally:
            busy.pop()

    def failed_at_logprobs(self) -> bool:
        fault = options.fault
        if fault == "logprobs_die":
            os._exit(3)
        if fault == "logprobs_stick":
            stuck.set()
            time.sleep(600)
        if fault == "logprobs_late":
            time.sleep(600)
        answers = {
            "logprobs_500": (500, "Internal Server Error"),
            "logprobs_400": (400, "prompt_logprobs is not supported"),
            "nan_500": (500, "Out of range float values are not JSON compliant: nan"),
        }
        if fault == "logprobs_end":  # says 500, and answers nothing from then on
            stuck.set()
            fault = "logprobs_500"
        if fault in answers:
            status, message = answers[fault]
            self.reply(status, {"error": {"message": message}})
        return fault in answers

    def chat(self, body: dict) -> None:
        if options.fault == "no_chat":
            return self.reply(400, {"error": {"message": "no chat template"}})
        said = body["messages"][-1]["content"]
        answer = "The capital of France is Paris."
        if "word for word: " in said:
            answer = said.split("word for word: ")[1]
        elif "What is my name?" in said:
            answer = "Your name is Marigold."
        tokens = split(answer)[: body["max_tokens"]]
        if options.fault in {"loop", "random"}:
            tokens = [following([said, str(n)]) for n in range(body["max_tokens"])]
        if options.fault == "one_token":
            tokens = ["Paris"]
        field = "reasoning_content" if options.fault == "reasoning" else "content"
        return self.stream(tokens, lambda token: {"delta": {field: token}})

    def complete(self, body: dict) -> None:
        if options.fault == "chat_only":
            return self.reply(404, {"detail": "Not Found"})
        prompt = body["prompt"]
        context = split(prompt) if isinstance(prompt, str) else [VOCABULARY[i] for i in prompt]
        if len(context) > 300 and options.fault == "short_context":
            return self.reply(400, {"error": {"message": "maximum context length is 300 tokens"}})
        before = len(context)
        numbers = [None] + [logprob(context[:n], context[n], False) for n in range(1, before)]
        for _ in range(body["max_tokens"]):
            if options.fault == "pair":
                time.sleep(0.01)
            token = following(context)
            if options.fault == "decode" and body.get("echo"):
                token = WORDS[int(chance(len(context)) * len(WORDS))]
            numbers.append(logprob(context, token, True))
            context.append(token)
        if body.get("stream"):
            return self.stream(context[before:], lambda token: {"text": token})
        first = 0 if body.get("echo") and options.fault != "no_echo" else before
        if body.get("return_tokens_as_token_ids"):
            names = [f"token_id:{name_of(token)}" for token in context[first:]]
        else:
            names = context[first:]
        choice = {
            "text": "".join(context[first:]),
            "logprobs": {"tokens": names, "token_logprobs": numbers[first:]},
        }
        usage = {"prompt_tokens": before, "completion_tokens": len(context) - before}
        return self.reply(200, {"choices": [choice], "usage": usage})

    def stream(self, tokens: list, shape) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if options.fault == "retry_first":
            self.chunk(b"retry: 1000\n\n")
        pace = options.pace * random.uniform(1 - options.noise, 1 + options.noise)
        time.sleep(options.wait)
        if options.accept:
            rounds["drafts"] += len(tokens) / options.accept
            rounds["accepted_tokens"] += len(tokens) * (1 - 1 / options.accept)
        for token in tokens:
            time.sleep(1.1 if options.fault == "slow" else 1 / pace if pace else 0)
            self.event({"choices": [shape(token)]})
            if options.fault == "breaks_off":
                self.close_connection = True
                return None
            if options.fault == "stream_error":
                self.event({"error": {"message": "EngineCore died"}})
            if options.fault == "stops":
                time.sleep(600)
        while options.fault == "endless":
            self.event({"choices": [shape(" the")]})
        self.event({"choices": [], "usage": {"completion_tokens": len(tokens)}})
        if options.fault == "left_open":
            time.sleep(600)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        return None

    def event(self, value: dict) -> None:
        if options.fault == "remarks":  # as a gateway adds them to whatever passes
            value = {**value, "message": "ok", "detail": "cached"}
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--key")
    parser.add_argument("--root", default="")
    parser.add_argument("--name", default="tiny")
    for number in ("--pace", "--noise", "--wait", "--accept"):
        parser.add_argument(number, type=float, default=0.0)
    parser.parse_args(namespace=options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
