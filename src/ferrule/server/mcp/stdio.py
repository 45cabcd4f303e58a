"""Standard input and output as the transport of an MCP server."""

from __future__ import annotations

import getpass
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from typing import Any, BinaryIO, Final, cast

logger = logging.getLogger("ferrule.server")

MAX_MESSAGE_SIZE: Final = 64 * 1024 * 1024
SKIP_SIZE: Final = 1024 * 1024


def _user() -> str:
    try:
        return str(os.getuid())
    except AttributeError:  # Windows
        return getpass.getuser()


@lru_cache(100)
def identify_stdio_client(name: str) -> str:
    """What tells the client of this process from others, and stays when the client is started again.

    That is who runs it on which machine, the name it gives itself, the folder, and how it starts this process.
    """
    parts = [platform.node(), _user(), name, os.getcwd(), *sys.argv[1:]]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


async def serve_on_stdio(server: Any, max_message_size: int) -> None:
    """Serve the client that started this process, until it disconnects. A longer message is skipped."""
    import anyio
    from mcp.server.stdio import stdio_server

    with _claim_standard_input() as file:
        stdin: Any = anyio.wrap_file(cast("Any", MessageLines(file, max_message_size)))
        async with stdio_server(stdin=stdin) as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())


class MessageLines:
    """The lines of a file as the SDK reads them, where a line that is too long is replaced by a short one."""

    def __init__(self, file: BinaryIO, max_size: int) -> None:
        self._file, self._max_size = file, max_size

    def readline(self) -> str:
        line = self._file.readline(self._max_size + 1)
        if len(line) <= self._max_size or line.endswith(b"\n"):
            return line.decode("utf-8", "replace")
        del line
        while (rest := self._file.readline(SKIP_SIZE)) and not rest.endswith(b"\n"):
            pass
        logger.warning("size=<%d> | a message of the client is longer and was skipped", self._max_size)
        return "a message that is too long\n"  # which the SDK reports as invalid


@contextmanager
def _claim_standard_input() -> Iterator[BinaryIO]:
    """Standard input for the protocol alone: tools and the processes they start read an empty file instead."""
    copy, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    try:
        yield open(copy, "rb", closefd=False)  # noqa: SIM115  a thread may still be reading from it at the end
    finally:
        os.dup2(copy, 0)
