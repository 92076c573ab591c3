"""A container engine without containers: a daemon that starts what clients ask for, and its clients.

    fake_docker.py daemon SOCKET [--groups] [--deaf-to VERB]
    FAKE_DOCKER=SOCKET fake_docker.py run|inspect|stop|rm …

As with the real one, what runs descends from the daemon and not from the client, a client that is killed
leaves it running, and only its ID ends it. `--groups` puts each into a cgroup of its ID's name, where one
can be made. `--deaf-to`: it refuses that verb. What it was asked is kept in SOCKET.asked, a line each.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from shakedown.host import cgroup

VALUED = {"--cidfile", "--name", "--network", "-e", "--env", "-p", "--format", "--time"}


def read(words):
    """(options, what follows them); an option may come twice."""
    options, at = [], 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name in VALUED and not equals:
            at += 1
            value = words[at]
        options.append((name, value))
        at += 1
    return options, words[at:]


class Container:
    def __init__(self, command, env, group):
        self.id = secrets.token_hex(32)
        self.group = cgroup.make(self.id) if group else None
        self.output, write = os.pipe()
        join = (lambda: cgroup.join(self.group)) if self.group else None
        self.process = subprocess.Popen(
            command,
            env={**env, "CONTAINER": self.id},
            stdout=write,
            stderr=write,
            start_new_session=True,
            preexec_fn=join,
        )
        os.close(write)

    def kill(self):
        """With the first process of a container goes all that is in it."""
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        if self.group:
            cgroup.remove(self.group)

    def members(self):
        mark, found = f"CONTAINER={self.id}\0".encode(), []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (place / "environ").read_bytes():
                    found.append(int(place.name))
        return found


class Daemon:
    def __init__(self, place, groups, deaf_to):
        self.asked = Path(f"{place}.asked").open("a", buffering=1)  # noqa: SIM115
        self.groups, self.deaf_to = groups, deaf_to
        self.containers = {}
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(place)
        self.server.listen()

    def serve(self):
        while True:
            client, _ = self.server.accept()
            threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client):
        with client, client.makefile("rw", buffering=1) as stream:
            request = json.loads(stream.readline())
            verb, *words = request["argv"]
            print(verb, *words, file=self.asked)
            options, rest = read(words)
            if verb == self.deaf_to:
                tell(stream, out=f"Error: {verb}: permission denied\n", exit=1)
            elif verb == "run":
                self.run(stream, options, rest[1:], request["env"])
            elif rest[-1] not in self.containers:
                tell(stream, out=f"Error: No such container: {rest[-1]}\n", exit=1)
            else:
                tell(stream, out=self.do(verb, dict(options), self.containers[rest[-1]]), exit=0)

    def run(self, stream, options, command, environment):
        given = [value for name, value in options if name in ("-e", "--env")]
        env = dict(word.split("=", 1) for word in given if "=" in word)
        env |= {name: environment[name] for name in given if name in environment}
        container = Container(command, {"PATH": os.environ["PATH"], **env}, self.groups)
        self.containers[container.id] = container
        tell(stream, id=container.id)
        threading.Thread(target=self.pass_on_signals, args=(stream, container), daemon=True).start()
        while text := os.read(container.output, 65536):
            tell(stream, out=text.decode(errors="replace"))
        code = container.process.wait()
        if "--rm" in dict(options):
            self.containers.pop(container.id, None)
        tell(stream, exit=code if code >= 0 else 128 - code)

    def pass_on_signals(self, stream, container):
        for line in stream:
            container.process.send_signal(json.loads(line)["signal"])

    def do(self, verb, options, container):
        if verb == "inspect":
            return f"{container.process.pid if container.process.poll() is None else 0}\n"
        if verb == "stop":
            container.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                container.process.wait(float(options["--time"]))
            container.kill()
        elif verb == "kill":
            container.kill()
        elif verb == "rm":
            container.process.terminate()  # podman's, that is
            with contextlib.suppress(subprocess.TimeoutExpired):
                container.process.wait(10)
            container.kill()
            del self.containers[container.id]
        return f"{container.id}\n"


def tell(stream, **what):
    try:
        print(json.dumps(what), file=stream, flush=True)
    except (OSError, ValueError):  # the client was killed: the container goes on
        return


def ask():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["FAKE_DOCKER"])
        with connection.makefile("rw", buffering=1) as stream:
            argv = sys.argv[1:]
            if argv[0] == "run":
                number = signal.SIGTERM
                signal.signal(number, lambda *_: tell(stream, signal=number))
            print(json.dumps({"argv": argv, "env": dict(os.environ)}), file=stream)
            for line in stream:
                told = json.loads(line)
                if "id" in told and (file := dict(read(argv[1:])[0]).get("--cidfile")):
                    Path(file).write_text(told["id"])
                os.write(1, told.get("out", "").encode())
                if "exit" in told:
                    return told["exit"]
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        flags = sys.argv[3:]
        deaf_to = flags[flags.index("--deaf-to") + 1] if "--deaf-to" in flags else None
        Daemon(sys.argv[2], "--groups" in flags, deaf_to).serve()
    sys.exit(ask())
