"""A process that records calls; tests start it with `python -m tests.store.recording_process COMMAND PATH …`."""

import asyncio
import os
import random
import resource
import signal
import sys

from ferrule.store import ToolKnowledgeStore
from tests.store.records import finish_record, start_record


def record_until_killed(path: str, acknowledged: int) -> None:
    store, chance = ToolKnowledgeStore(path), random.Random(5)
    store.start()
    while True:
        record = start_record(store, params={"message": "x" * chance.randrange(2000)})
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
        # Killed after so many records, while it writes the next one; every fourth time while it still starts.
        expected, output = 4 * number if number % 4 else 0, b""
        while output.count(b"\n") < expected:
            output += os.read(reading, 65536)
        os.kill(child, signal.SIGKILL)
        while rest := os.read(reading, 65536):
            output += rest
        os.close(reading)
        os.waitpid(child, 0)
        print(*output.decode().rpartition("\n")[0].split(), sep="\n", flush=True)


def leave_one_running(path: str) -> None:
    """Die in the middle of a call."""
    store = ToolKnowledgeStore(path)
    store.start()
    finish_record(store, "done")
    start_record(store, "stuck")
    os.kill(os.getpid(), signal.SIGKILL)


def record_many(path: str, number: str) -> None:
    """A process that behaves well."""

    async def main() -> None:
        async with ToolKnowledgeStore(path) as store:
            for n in range(int(number)):
                finish_record(store, caller_id=str(os.getpid()))
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
                finish_record(store, tool_name)
            await store.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
            for _ in range(100):
                finish_record(store, "during", params={"text": "x" * 100})
            while not store.failures:  # until the journal or the writer thread has met the full disk
                await asyncio.sleep(0.01)  # between two looks
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            finish_record(store, "after")

    asyncio.run(main())


def record_in_a_forked_child(path: str) -> None:
    async def main() -> None:
        async with ToolKnowledgeStore(path) as store:
            finish_record(store, "parent")
            await store.flush()
            child = os.fork()
            if child == 0:
                finish_record(store, "child")
                os._exit(0)
            await asyncio.to_thread(os.waitpid, child, 0)
            finish_record(store, "parent")
            assert [r.tool_name for r in await store.query_call_records()] == ["parent", "child", "parent"]

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
