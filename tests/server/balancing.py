"""A balancer in front of several servers."""

import itertools
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager


@contextmanager
def balance(urls: Sequence[str]) -> Iterator[str]:
    """A balancer of TCP connections: the servers take turns, and one that does not answer is left out."""
    ports = itertools.cycle([int(url.rsplit(":", 1)[1]) for url in urls])
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=_accept, args=(listener, ports, len(urls)), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, ports: Iterator[int], servers: int) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # the test has ended
            return
        for port in itertools.islice(ports, servers):
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                continue
            threading.Thread(target=_pipe, args=(client, server), daemon=True).start()
            break
        else:
            client.close()


def _pipe(first: socket.socket, second: socket.socket) -> None:
    with first, second, selectors.DefaultSelector() as selector:
        selector.register(first, selectors.EVENT_READ, second)
        selector.register(second, selectors.EVENT_READ, first)
        while True:
            for key, _ in selector.select():
                try:
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    key.data.sendall(data)
                except OSError:
                    return
                if not data:
                    return
