"""A start script with two servers, as people write them: proc_pair.py FOLDER PORT PORT

Each is a `vllm serve` by name, has a key of its own (key-of-PORT), wants no other, and keeps what key it was
sent in FOLDER/PORT. Prints "up" once both listen; ends as soon as both have.
"""

import subprocess
import sys
import time
from pathlib import Path

folder, ports = Path(sys.argv[1]), sys.argv[2:]
program = folder / "vllm"
program.write_text(
    f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import http_model
from http.server import ThreadingHTTPServer
from pathlib import Path
port = sys.argv[sys.argv.index("--port") + 1]
key = sys.argv[sys.argv.index("--api-key") + 1]
options = http_model.options
options.fault, options.key, options.root, options.name = "none", key, "", "tiny"
class Server(http_model.Server):
    def allowed(self):
        with (Path(__file__).parent / port).open("a") as seen:
            print(self.headers.get("authorization"), file=seen)
        return super().allowed()
server = ThreadingHTTPServer(("127.0.0.1", int(port)), Server)
print("listens", flush=True)
server.serve_forever()
"""
)
servers = []
for port in ports:
    command = [sys.executable, str(program), "serve", "tiny", "--port", port, "--api-key", f"key-of-{port}"]
    servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()
print("up", flush=True)
for server in servers:
    server.wait()
time.sleep(600)
