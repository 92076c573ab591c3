"""A listener that speaks bad HTTP, or none: http_raw.py MODE [CERTIFICATE]. Prints its port."""

import contextlib
import re
import socket
import ssl
import sys
import threading
import time

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"


def head(length: int) -> bytes:
    return HEAD + f"content-length: {length}\r\n\r\n".encode()


def whole(data: bytes) -> bytes:
    return head(len(data)) + data


def drip(client: socket.socket, data: bytes) -> None:
    for byte in data:
        client.sendall(bytes([byte]))
        time.sleep(0.05)


def read_request(client: socket.socket) -> None:
    """All of it: closing on unread bytes resets the connection, which is another fault."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536) or b"\r\n\r\n"
    found = re.search(rb"content-length: (\d+)", data.lower())
    left = int(found[1]) - len(data.split(b"\r\n\r\n", 1)[1]) if found else 0
    while left > 0 and (more := client.recv(65536)):
        left -= len(more)


def serve(client: socket.socket, mode: str) -> None:
    if mode == "close_at_once":
        return
    read_request(client)
    if mode == "drip_head":
        drip(client, HEAD * 100)
    elif mode == "drip_body":
        client.sendall(head(10000))
        drip(client, b" " * 10000)
    elif mode == "huge":
        client.sendall(head(1 << 40))
        while True:
            client.sendall(b"x" * 65536)
    elif mode == "half":
        client.sendall(head(100) + b'{"choices"')
    elif mode == "redirect":
        client.sendall(b"HTTP/1.1 302 Found\r\nlocation: http://203.0.113.1/\r\ncontent-length: 0\r\n\r\n")
    elif mode in ANSWERS:
        client.sendall(ANSWERS[mode])
    else:
        time.sleep(600)


ANSWERS = {
    "html": whole(b"<html><body>\x1b[31mIt works!</body></html>"),
    "garbage": b"\x00\xff\x00\xff not HTTP at all\r\n\r\n",
    "deep": whole(b"[" * 1_000_000),
    "null": whole(b"null"),
    "types": whole(b'{"choices": [{"text": 7, "message": [], "logprobs": {"tokens": 3}}], "usage": "many"}'),
    "numbers": whole(b'{"choices": {"0": 1}, "usage": {"completion_tokens": -1e999}, "error": []}'),
    "empty": whole(b'{"choices": [{"text": ""}]}'),
    "gzip": HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00",
    "not_utf8": whole(b'{"choices": [{"text": "\xff\xfe"}]}'),
}


def main() -> None:
    mode = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0), backlog=0 if mode == "deaf" else 16)
    print(listener.getsockname()[1], flush=True)
    if mode == "deaf":
        time.sleep(600)
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])

    def work(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if context is None:
                serve(client, mode)
            else:
                with context.wrap_socket(client, server_side=True) as wrapped:
                    serve(wrapped, mode)

    while True:
        threading.Thread(target=work, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
