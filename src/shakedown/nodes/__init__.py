"""One launch on several nodes: read from a file, started together, watched as one, ended together.

Which node is to blame is decided in `blame`, purely; everything that acts is in `conduct`.
"""

from shakedown.nodes.conduct import Crew, run_nodes
from shakedown.nodes.factors import JointFactors
from shakedown.nodes.file import Node, NodesFile, read_nodes, write_nodes
from shakedown.nodes.member import Station

__all__ = [
    "Crew",
    "JointFactors",
    "Node",
    "NodesFile",
    "Station",
    "read_nodes",
    "run_nodes",
    "write_nodes",
]
