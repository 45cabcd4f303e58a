"""Ports for servers whose address must be known before they listen."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that no other process is given meanwhile. Nobody listens there until a server does.

    On Linux a server (which reuses addresses, as those of asyncio do) may listen at the address of a socket that is
    bound and does not listen; the system gives the port to nobody who asks for any free one.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        port = int(reservation.getsockname()[1])
        if sys.platform != "linux":  # where the server could not listen there
            reservation.close()
        yield port


def find_free_port() -> int:
    """A port that is free now, and may be taken by another process before it is used: `reserved_port` is better."""
    with reserved_port() as port:
        return port
