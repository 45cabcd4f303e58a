"""The vectors of tools stay in the store, whatever happens to processes and rows."""

import asyncio
from datetime import timedelta

import pytest

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.catalog.search import index as registry_index
from ferrule.catalog.search.vectors import ENCODER
from ferrule.store import ToolKnowledgeStore
from ferrule.store.database import StoreDatabase
from ferrule.store.tables import get_table
from tests.catalog.search.searchable_tools import make_tool, needs_encoder, office_tools
from tests.support.processes import ROOT, run_python

pytestmark = pytest.mark.integration

PREPARE = """
import asyncio, sys
from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.store import ToolKnowledgeStore
from tests.catalog.search.searchable_tools import make_tool, office_tools

async def main():
    async with ToolKnowledgeStore(sys.argv[1]) as store:
        tools = [*office_tools(), *(make_tool(f"tool_{n}", f"Number {n}.") for n in range(30))]
        index = RegistryIndex(ToolRegistry(tools), store.vectors)
        while not index.uses_vectors("把照片压缩一下"):
            await index.prepare("把照片压缩一下")
        print(index.search("把照片压缩一下")[0].tool.id)
        await index.aclose()

asyncio.run(main())
"""


@pytest.fixture
def sqlite_url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/calls.db"


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The ids of the tools that were encoded, however long that takes."""
    monkeypatch.setattr(registry_index, "PREPARATION_TIMEOUT", 120)
    ids: list[str] = []

    def note(by_digest):
        ids.extend(documents[0].tool.id for documents in by_digest.values())
        return encode(by_digest)

    encode = registry_index._encode_documents
    monkeypatch.setattr(registry_index, "_encode_documents", note)
    return ids


async def search(store: ToolKnowledgeStore, text: str, *more) -> str:
    """The best tool, as a process that has just started finds it."""
    index = RegistryIndex(ToolRegistry([*office_tools(), *more]), store.vectors)
    await index.prepare(text)
    return index.search(text)[0].tool.id


def change_rows(database: StoreDatabase, /, **values: object) -> int:
    with database.write() as connection:
        return connection.execute(get_table("tool_vectors").update().values(values)).rowcount


def count_rows(database: StoreDatabase) -> int:
    with database.read() as connection:
        return len(connection.execute(get_table("tool_vectors").select()).all())


async def test_what_is_saved_is_loaded(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        vectors = {f"{n:032x}": bytes([n % 256]) * 1028 for n in range(1_200)}
        await store.vectors.save("one", vectors)
        await store.vectors.save("one", {f"{1:032x}": b"new"})
        assert await store.vectors.load("one", [*vectors, "unknown"]) == {**vectors, f"{1:032x}": b"new"}
        assert await store.vectors.load("two", vectors) == {} == await store.vectors.load("one", [])


@needs_encoder
async def test_a_tool_is_encoded_once_and_not_at_every_start(sqlite_url, encoded):
    async with ToolKnowledgeStore(sqlite_url) as store:
        assert await search(store, "把照片压缩一下") == "shrink_image"
        assert len(encoded) == 5
        assert await search(store, "明天会下雨吗？") == "tell_weather"
        assert len(encoded) == 5
        assert await search(store, "带小狗出去走走", make_tool("walk_dog", "Take a pet outside.")) == "walk_dog"
        assert encoded[5:] == ["walk_dog"]


@needs_encoder
@pytest.mark.parametrize(
    "damage",
    [{"vector": b""}, {"vector": b"\0" * 1028}, {"vector": b"x" * 7}, {"encoder": ENCODER + "-older"}],
    ids=["empty", "zeros", "short", "of another encoder"],
)
async def test_a_damaged_row_is_made_again(sqlite_url, encoded, damage):
    async with ToolKnowledgeStore(sqlite_url) as store:
        await search(store, "把照片压缩一下")
        assert await store.query(change_rows, **damage) == 5
        assert await search(store, "把照片压缩一下") == "shrink_image" and len(encoded) == 10
        assert await search(store, "把照片压缩一下") == "shrink_image" and len(encoded) == 10


@needs_encoder
async def test_a_store_that_fails_costs_time_and_no_results(sqlite_url, encoded, caplog):
    async with ToolKnowledgeStore(sqlite_url) as store:
        pass
    assert await search(store, "把照片压缩一下") == "shrink_image" and len(encoded) == 5
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the vectors of tools cannot be read, and are made again",
        "the vectors of tools cannot be saved, and are made again next time",
    ]


@needs_encoder
@pytest.mark.parametrize(
    "shared_store_url", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"], indirect=True
)
async def test_two_processes_fill_one_table(shared_store_url):
    programs = [asyncio.to_thread(run_python, "-c", PREPARE, shared_store_url, cwd=ROOT) for _ in range(2)]
    assert [(done.stdout, done.stderr) for done in await asyncio.gather(*programs)] == [("shrink_image\n", "")] * 2
    async with ToolKnowledgeStore(shared_store_url) as store:
        assert await store.query(count_rows) == 35


async def test_vectors_that_nobody_uses_any_more_are_deleted(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        await store.vectors.save(ENCODER, {"old": b"1", "used": b"2"})
        await store.query(change_rows, used_at=1_000.0)
        await store.vectors.load(ENCODER, ["used"])  # which counts as a use
        await store.delete_records(older_than=timedelta(days=30))
        assert await store.vectors.load(ENCODER, ["old", "used"]) == {"used": b"2"}
