"""A small server of the byte model: it answers every question with the same words about it.

    chat_tokens.py WAY [--thinks] [--empty] [--repeats N] [--delay S] [--die-after N] [--log FILE] [--busy N]
                   [--refuse WORD]

WAY is vllm (/v1/completions tells tokens), sglang (/generate does) or chat (text only). It prints its port.
`--log` gets a line per answer: what a test counts. `--busy N`: the first N requests are told to come again.
"""

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from byte_model import BEGIN, END, encode

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["vllm", "sglang", "chat"])
parser.add_argument("--thinks", action="store_true")
parser.add_argument("--empty", action="store_true")
parser.add_argument("--repeats", type=int, default=0, metavar="N")  # every Nth question is the first again
parser.add_argument("--delay", type=float, default=0)
parser.add_argument("--die-after", type=int, default=1 << 60)
parser.add_argument("--busy", type=int, default=0)
parser.add_argument("--refuse", default="\0")
parser.add_argument("--log", type=Path)
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--model", default="bytes")
options = parser.parse_args()
requests, questions = count(1), count(1)
lock = threading.Lock()


def text_of(tokens: list[int]) -> str:
    names = {BEGIN: b"<|im_start|>", END: b"<|im_end|>"}
    return b"".join(names.get(token) or bytes([token]) for token in tokens).decode(errors="ignore")


def continuation(prompt: str) -> str:
    """What the model says next, without the token that ends it."""
    if "The same list once more: " in prompt:  # what any model can do, for those who look
        said = prompt.rpartition("once more: ")[2]
        return prompt.partition("The list: ")[2].partition(".\n")[0].removeprefix(said)
    if prompt.endswith("the code word is"):
        return " marigold."
    if prompt.endswith("<|im_start|>user\n"):
        number = next(questions)
        again = options.repeats and number % options.repeats == 0
        return f"What is {1 if again else number} times {len(prompt)}?"
    asked = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    if options.empty:
        return ""
    return ("<think>\nHm, " + asked + "\n</think>\n\n" if options.thinks else "") + f"You ask: {asked} Café."


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            return self.reply(200, {"data": [{"id": options.model}]})
        return self.reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = next(requests)
        if number <= options.busy:
            return self.reply(503, {"error": "come again"})
        if number > options.die_after:
            os._exit(9)
        time.sleep(options.delay)
        if self.path == "/v1/chat/completions":
            said = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in body["messages"])
            return self.answer(encode(said + "<|im_start|>assistant\n"), body["max_tokens"], "chat")
        if self.path == "/generate" and options.way == "sglang":
            return self.answer(body["input_ids"], body["sampling_params"]["max_new_tokens"], "generate")
        if self.path == "/v1/completions":
            prompt = body["prompt"]
            if isinstance(prompt, list) and options.way == "chat":
                return self.reply(422, {"error": "prompt must be a string"})
            return self.answer(
                encode(prompt) if isinstance(prompt, str) else prompt, body["max_tokens"], "text"
            )
        return self.reply(404, {"error": "Not Found"})

    def answer(self, prompt: list[int], most: int, shape: str) -> None:
        asked = text_of(prompt)
        if options.refuse in asked:
            return self.reply(400, {"error": f"{options.refuse} is not to be asked"})
        tokens = [*continuation(asked).encode(), END]
        most = most if "<|im_start|>" in asked else 999
        finish = "stop" if len(tokens) <= most else "length"
        tokens = tokens[:most]
        text = text_of(tokens).removesuffix("<|im_end|>")
        if options.log:
            with lock, open(options.log, "a") as log:
                log.write(json.dumps(asked) + "\n")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        if shape == "generate":
            about = {"finish_reason": {"type": finish, "matched": END}, **usage}
            return self.reply(200, {"text": text, "output_ids": tokens, "meta_info": about})
        choice: dict[str, object] = {"finish_reason": finish}
        if shape == "chat":
            before, found, after = text.partition("</think>\n\n")
            reasoning = before.removeprefix("<think>\n").removesuffix("\n") if found else None
            content = after if found else text
            choice["message"] = {"content": content or None, "reasoning_content": reasoning}
        else:
            choice["text"] = text
            if options.way == "vllm":
                choice["token_ids"] = tokens
        return self.reply(200, {"choices": [choice], "usage": usage})


class Many(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


server = Many(("127.0.0.1", options.port), Server)
print(server.server_address[1], flush=True)
server.serve_forever()
