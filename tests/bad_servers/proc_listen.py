"""A server that listens, says on which port, and echoes what it is sent.

usage: proc_listen.py [PORT]
"""

import socket
import sys

with socket.create_server(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 0)) as server:
    print("port", server.getsockname()[1], flush=True)
    connections = []
    while True:
        connection, _ = server.accept()
        connections.append(connection)
        connection.sendall(connection.recv(65536))
