"""A process of its own that records calls; started by tests with `python -m tests.store.recording COMMAND PATH …`."""

import asyncio
import os
import random
import resource
import select
import signal
import sys
import time

from ferrule.store import ToolKnowledgeStore
from tests.store.making import ended, running


def record_until_killed(path: str, acknowledged: int) -> None:
    store = ToolKnowledgeStore(path)
    store.start()
    while True:
        record = running(store, params={"message": "x" * random.randrange(2000)})
        record.status = "success"
        store.record_finished(record)
        os.write(acknowledged, f"{record.record_id}\n".encode())


def kill_recorders(path: str, rounds: str) -> None:
    """Fork, record, kill, again and again; prints every acknowledged id."""
    asyncio.run(ToolKnowledgeStore().flush())  # everything is imported before the first fork
    for number in range(int(rounds)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            record_until_killed(path, writing)
        os.close(writing)
        said = os.read(reading, 1) if number % 4 else b""  # mostly from the first record on, else from the start
        deadline = time.monotonic() + random.uniform(0.0, 0.06)
        while (left := deadline - time.monotonic()) > 0:
            if select.select([reading], [], [], left)[0]:
                said += os.read(reading, 65536)
        os.kill(child, signal.SIGKILL)
        while rest := os.read(reading, 65536):
            said += rest
        os.close(reading)
        os.waitpid(child, 0)
        print(*said.decode().rpartition("\n")[0].split(), sep="\n", flush=True)


def leave_one_running(path: str) -> None:
    """Die in the middle of a call."""
    store = ToolKnowledgeStore(path)
    store.start()
    ended(store, "done")
    running(store, "stuck")
    os.kill(os.getpid(), signal.SIGKILL)


def record_many(path: str, number: str) -> None:
    """A process that behaves well."""

    async def main() -> None:
        async with ToolKnowledgeStore(path) as store:
            for n in range(int(number)):
                ended(store, caller_id=str(os.getpid()))
                if n % 50 == 0:
                    await store.query_call_records(limit=1)
            assert store.failures == 0

    asyncio.run(main())


def meet_a_full_disk(path: str, *earlier_calls: str) -> None:
    """No file of this process may grow beyond some kilobytes for a while."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def main() -> None:
        async with ToolKnowledgeStore(path) as store:
            for tool_name in earlier_calls:
                ended(store, tool_name)
            await store.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
            for _ in range(100):
                ended(store, "during", params={"text": "x" * 100})
            await asyncio.sleep(0.3)
            assert store.failures > 0
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            ended(store, "after")

    asyncio.run(main())


def record_in_a_forked_child(path: str) -> None:
    async def main() -> None:
        async with ToolKnowledgeStore(path) as store:
            ended(store, "parent")
            await store.flush()
            child = os.fork()
            if child == 0:
                ended(store, "child")
                os._exit(0)
            await asyncio.to_thread(os.waitpid, child, 0)
            ended(store, "parent")
            assert [r.tool_name for r in await store.query_call_records()] == ["parent", "child", "parent"]

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
