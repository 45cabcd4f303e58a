"""Streams of entries: what must not be lost besides call records."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.store import ToolKnowledgeStore
from tests.support.processes import ROOT, run_python

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def test_entries_come_back_in_the_order_of_their_keys(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        store.write_entry("run-1", "0002", {"role": "assistant", "content": "三"})
        store.write_entry("run-1", "0001", {"role": "user", "content": "一加二"})
        store.write_entry("run-2", "0001", None)
        assert list((await store.read_entries("run-1")).items()) == [
            ("0001", {"role": "user", "content": "一加二"}),
            ("0002", {"role": "assistant", "content": "三"}),
        ]
        assert await store.read_entries("run-2") == {"0001": None}
        assert await store.read_entries("run-3") == {}


async def test_a_later_value_replaces_an_earlier_one(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for number in range(5):
            store.write_entry("state", "run", {"turn": number})
        assert await store.read_entries("state") == {"run": {"turn": 4}}
        store.write_entry("state", "run", {"turn": 5})
        assert await store.read_entries("state") == {"run": {"turn": 5}}


async def test_streams_are_listed_by_prefix(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for stream in ("run:a", "run:b", "failures"):
            store.write_entry(stream, "1", {})
        assert set(await store.list_streams("run:")) == {"run:a", "run:b"}
        assert set(await store.list_streams()) == {"run:a", "run:b", "failures"}


async def test_entries_can_be_deleted_by_key_or_all(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for key in "abc":
            store.write_entry("stream", key, key)
        assert await store.delete_entries("stream", ["a", "z"]) == 1
        assert await store.read_entries("stream") == {"b": "b", "c": "c"}
        assert await store.delete_entries("stream") == 2
        assert await store.read_entries("stream") == {}


async def test_a_secret_is_not_written(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        store.write_entry(
            "stream", "1", {"text": "use sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", "password": "hunter22"}
        )
        text = json.dumps(await store.read_entries("stream"))
        assert "abcdefghijklmnop" not in text and "hunter22" not in text


@given(st.lists(JSON, max_size=4))
def test_any_json_value_is_stored(values):
    async def store_all() -> dict[str, object]:
        async with ToolKnowledgeStore() as store:
            for number, value in enumerate(values):
                store.write_entry("stream", str(number), value)
            assert store.failures == 0
            return await store.read_entries("stream")

    assert len(asyncio.run(store_all())) == len(values)


@pytest.mark.integration
def test_entries_survive_a_killed_process(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from ferrule.store import ToolKnowledgeStore\n"
        "store = ToolKnowledgeStore(sys.argv[1]); store.start()\n"
        "[store.write_entry('run', f'{n:04}', n) for n in range(200)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    assert run_python("-c", program, url, cwd=ROOT).returncode == -9
    assert _read(url) == list(range(200))


def _read(url: str) -> list[int]:
    async def main() -> list[int]:
        async with ToolKnowledgeStore(url) as store:
            return list((await store.read_entries("run")).values())

    return asyncio.run(main())


@pytest.mark.integration
async def test_processes_that_write_the_same_keys_in_different_orders_do_not_wait_for_each_other(
    postgres_url: str, tmp_path: Path
) -> None:
    async def write(store: ToolKnowledgeStore, keys: list[str]) -> None:
        for number in range(5):
            for key in keys:
                store.write_entry("failures", key, number)
            await store.flush()

    keys = [f"{number:04}" for number in range(2000)]
    async with (
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "a") as first,
        ToolKnowledgeStore(postgres_url, journal_directory=tmp_path / "b") as second,
    ):
        await asyncio.gather(write(first, keys), write(second, keys[::-1]))
        assert first.failures == second.failures == 0
        assert len(await first.read_entries("failures")) == len(keys)
