"""The ledger: every trial and search, written before it starts and closed when it is cleaned."""

from shakedown.ledger.ids import Kind
from shakedown.ledger.store import MODEL_FACT, Ledger

__all__ = ["MODEL_FACT", "Kind", "Ledger"]
