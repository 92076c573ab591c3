"""Servers and programs that behave oddly: odd.py MODE --port PORT [flags of http_model.py]

Modes: serve, daemon (forks away twice, serves from there), quiet (does nothing at all), binary (logs noise
and escape codes), unfinished (a log without newline), flood (logs for ever), elsewhere (says it is ready, and
listens on another port), anywhere (on two others), mute (says it is ready, and answers nobody). Else no line
is logged.
"""

import argparse
import os
import socket
import ssl
import sys
import threading
import time
from http.server import ThreadingHTTPServer

import http_model

NOISE = bytes(range(256)) * 4 + b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \xff\xfe \x00\x00\n"


def daemonise() -> None:
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()


def flood() -> None:
    block = b"".join(b"INFO request %06d of many, all of them alike\n" % number for number in range(20_000))
    while True:
        os.write(1, block)


def main() -> None:
    mode = sys.argv.pop(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--api-key", "--hidden-key", dest="key")
    parser.add_argument("--root-path", dest="root", default="")
    parser.add_argument("--served-model-name", dest="name", default="tiny")
    parser.add_argument("--ssl-certfile")
    parser.parse_args(namespace=http_model.options)
    if mode == "daemon":
        daemonise()
    elif mode == "quiet":
        time.sleep(600)
    elif mode == "binary":
        os.write(1, NOISE)
    elif mode == "unfinished":
        os.write(1, b"no newline here")
    elif mode == "flood":
        threading.Thread(target=flood, daemon=True).start()
    elif mode in ("elsewhere", "anywhere", "mute"):
        print("INFO:     Application startup complete.", flush=True)
    if mode in ("elsewhere", "anywhere"):
        http_model.options.port = 0
    beside = socket.create_server(("127.0.0.1", 0)) if mode == "anywhere" else None
    if mode == "mute":
        with socket.create_server(("127.0.0.1", http_model.options.port)):
            time.sleep(600)
    server = ThreadingHTTPServer(("127.0.0.1", http_model.options.port), http_model.Server)
    if http_model.options.ssl_certfile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(http_model.options.ssl_certfile)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
    del beside


if __name__ == "__main__":
    main()
