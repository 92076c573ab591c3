"""Where what is bound to an address can be reached from the same machine."""

from __future__ import annotations

from urllib.parse import urlsplit

ANY_ADDRESS = frozenset({"", "0.0.0.0"})
ANY_IPV6 = frozenset({"::", "[::]"})  # which may be open to IPv6 alone


def reached_at(address: str) -> str:
    """What is bound to any address is reached by the loopback of the same family."""
    return "::1" if address in ANY_IPV6 else "127.0.0.1" if address in ANY_ADDRESS else address


def at_address(base_url: str, address: str) -> str:
    """Where it really listens: a command may say 0.0.0.0, a name, or nothing."""
    address = reached_at(address)
    parts = urlsplit(base_url)
    host = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=f"{host}:{parts.port}").geturl()
