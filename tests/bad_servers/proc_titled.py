"""A server that writes a title over its command line and environment, as setproctitle does.

usage: proc_titled.py TITLE PORT; answers like http_model.py.
"""

import ctypes
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path

import http_model

title, port = sys.argv[1].encode(), int(sys.argv[2])
fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
begin, end = int(fields[45]), int(fields[48])  # arg_start, env_end
ctypes.memset(begin, 0, end - begin)
ctypes.memmove(begin, title, len(title))
options = http_model.options
options.fault, options.key, options.root, options.name = "none", None, "", "tiny"
server = ThreadingHTTPServer(("127.0.0.1", port), http_model.Server)
print("up", flush=True)
server.serve_forever()
