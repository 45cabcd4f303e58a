"""The event loop that frameworks make for sync runs, and leave open."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def default_loop() -> Iterator[None]:
    """A loop for them to find, closed afterwards."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()
