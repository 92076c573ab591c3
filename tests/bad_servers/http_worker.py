"""A server whose every token comes from a worker process: http_worker.py PORT. Answers like http_model.py."""

import os
import sys
import threading
from http.server import ThreadingHTTPServer

import http_model

orders, order = os.pipe()
done, report = os.pipe()
if os.fork() == 0:
    os.close(order)
    while os.read(orders, 1):
        os.write(report, b"+")
    os._exit(0)
os.close(orders)
turn = threading.Lock()


class Server(http_model.Server):
    def do_POST(self) -> None:
        with turn:
            os.write(order, b"+")
            os.read(done, 1)
        super().do_POST()


options = http_model.options
options.fault, options.key, options.root, options.name = "none", None, "", "tiny"
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Server)
print("up", flush=True)
server.serve_forever()
