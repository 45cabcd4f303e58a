"""Finding tools by what a question means, whatever its words."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from ferrule.catalog.registry import ToolRegistry
from ferrule.catalog.search import RegistryIndex
from ferrule.catalog.search import index as registry_index
from ferrule.catalog.search.vectors import (
    DIMENSIONS,
    VectorTable,
    pack_vector,
    replace_values_with_kinds,
    unpack_vector,
)
from tests.catalog.search.searchable_tools import make_tool, needs_encoder, office_tools
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def np() -> Any:
    """NumPy takes much memory: it is loaded when it is used, and these tests stay in one process."""
    return pytest.importorskip("numpy", reason='vectors need an extra: pip install "ferrule[semantic]"')


class Storage(dict[str, bytes]):
    """Vectors in a dictionary."""

    async def load(self, encoder: str, digests: Collection[str], /) -> dict[str, bytes]:
        return {digest: self[digest] for digest in digests if digest in self}

    async def save(self, encoder: str, vectors: Mapping[str, bytes], /) -> None:
        self.update(vectors)


@pytest.fixture(autouse=True)
def wait_for_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for it however busy the machine is."""
    monkeypatch.setattr(registry_index, "PREPARATION_TIMEOUT", 120)


async def search(index: RegistryIndex, text: str) -> list[str]:
    await index.prepare(text)
    return [hit.tool.id for hit in index.search(text)]


@needs_encoder
@pytest.mark.parametrize(
    ("text", "tool_id"),
    [
        ("明天会下雨吗？", "tell_weather"),
        ("How is the climate in Rome?", "tell_weather"),
        ("Ask Bob by e-post", "send_mail"),
        ("I need to fly to Rome", "book_flight"),
        ("周五下午见个面", "plan_meeting"),
    ],
)
async def test_a_question_finds_a_tool_that_shares_no_word_with_it(text: str, tool_id: str):
    index = RegistryIndex(ToolRegistry(office_tools()))
    assert tool_id not in [hit.tool.id for hit in index.search(text)]
    assert (await search(index, text))[0] == tool_id
    assert index.uses_vectors(text) and [hit.tool.id for hit in index.search_actions(text, 1)] == [tool_id]


@needs_encoder
async def test_a_tool_with_exactly_this_name_still_comes_first():
    tools = [*office_tools(), make_tool("email", "Count sheep.")]
    assert (await search(RegistryIndex(ToolRegistry(tools)), "email"))[:2] == ["email", "send_mail"]


@needs_encoder
async def test_only_what_fits_is_found():
    index = RegistryIndex(ToolRegistry(office_tools()))
    assert await search(index, "send an email") == ["send_mail"]


async def test_without_the_extra_tools_are_found_by_their_words(monkeypatch):
    monkeypatch.setattr(registry_index, "has_encoder", lambda: False)
    index = RegistryIndex(ToolRegistry(office_tools()))
    assert await search(index, "compress a picture") == ["shrink_image"]
    assert await search(index, "明天会下雨吗？") == [] and not index.uses_vectors("明天会下雨吗？")


async def test_a_broken_encoder_is_reported_once_and_words_still_work(monkeypatch, caplog):
    def fail() -> None:
        raise ImportError("numpy was built for another Python")

    monkeypatch.setattr(registry_index, "has_encoder", lambda: True)
    monkeypatch.setattr(registry_index, "shared_encoder", fail)
    index = RegistryIndex(ToolRegistry(office_tools()))
    assert await search(index, "compress a picture") == ["shrink_image"] == await search(index, "shrink pictures")
    assert [record.message for record in caplog.records] == [
        "tools are found by their words alone, because the encoder failed: numpy was built for another Python"
    ]


@needs_encoder
async def test_tools_that_change_are_encoded_again_and_no_others(monkeypatch):
    encoded: list[str] = []

    def note(by_digest):
        encoded.extend(documents[0].tool.id for documents in by_digest.values())
        return encode(by_digest)

    encode = registry_index._encode_documents
    monkeypatch.setattr(registry_index, "_encode_documents", note)
    registry = ToolRegistry(office_tools())
    index = RegistryIndex(registry, Storage())
    await search(index, "fly to Rome")
    assert sorted(encoded) == sorted(tool.id for tool in office_tools())
    encoded.clear()
    registry.replace(make_tool("send_mail", "Post a letter."))
    registry.replace(make_tool("book_flight", "Reserve a seat on a plane.", tags=["travel"]))
    registry.add(make_tool("walk_dog", "Take a pet outside."))
    registry.remove("tell_weather")
    assert await search(index, "带小狗出去走走") == ["walk_dog"]
    assert sorted(encoded) == ["send_mail", "walk_dog"]  # the same text as before has the same vector
    assert "tell_weather" not in await search(index, "明天会下雨吗？")


@needs_encoder
async def test_a_search_does_not_wait_for_long_and_encoding_goes_on(monkeypatch):
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(by_digest):
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)
        return encode(by_digest)

    encode = registry_index._encode_documents
    monkeypatch.setattr(registry_index, "_encode_documents", wait)
    monkeypatch.setattr(registry_index, "PREPARATION_TIMEOUT", 0.01)
    index = RegistryIndex(ToolRegistry(office_tools()))
    assert await search(index, "compress a picture") == ["shrink_image"]  # by its words
    assert not index.uses_vectors("compress a picture")
    released.set()
    await until(lambda: index.uses_vectors("compress a picture"))
    await index.aclose()


@needs_encoder
async def test_encoding_stops_when_the_index_is_closed(monkeypatch):
    monkeypatch.setattr(registry_index, "PREPARATION_TIMEOUT", 0.0)
    index = RegistryIndex(ToolRegistry(make_tool(f"tool_{n}", f"Number {n}.") for n in range(2_000)))
    await index.prepare("number")
    await index.aclose()
    assert not index.uses_vectors("number")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ferrule-tool-vectors"]


def test_values_are_not_part_of_what_is_to_be_done():
    for text, general in (
        ("Rename draft.txt to final.txt", "Rename file to file"),
        ("Open https://example.com/a?b=1 now", "Open URL now"),
        ('Search for "annual budget" in 3 folders', "Search for in folders"),
        ("把 report.pdf 发给 bob@example.com", "把 文件 发给 邮箱"),
        ("把待办里的“买牛奶”改掉", "把待办里的 改掉"),
        ("What time is it?", "What time is it?"),
    ):
        assert replace_values_with_kinds(text) == general


def test_damaged_bytes_are_no_vector(np: Any):
    vector = np.linspace(-1, 1, DIMENSIONS, dtype=np.float32)
    packed = pack_vector(vector)
    restored = unpack_vector(packed)
    assert restored is not None and np.allclose(restored, vector, atol=1e-3)
    for damaged in (b"", packed[:-1], packed[1:], bytes([packed[0] ^ 1]) + packed[1:], packed + b"\0"):
        assert unpack_vector(damaged) is None


def test_ten_thousand_vectors_that_come_and_go_need_no_more_memory(np: Any):
    def unit(position: int) -> Any:
        vector = np.zeros(DIMENSIONS, dtype=np.float32)
        vector[position] = 1
        return vector

    table: Any = VectorTable()
    for number in range(10_000):
        table.set_row(number, unit(number % DIMENSIONS))
    assert len(table.compare([unit(7)], 0.5, 0.0, 20, [])) == 20
    size = table._matrix.nbytes
    assert size < 40_000_000
    for number in range(10_000, 60_000):
        table.discard(number - 10_000)
        table.set_row(number, unit(number % DIMENSIONS))
    assert len(table) == 10_000
    similar = table.compare([unit(7)], 0.5, 0.0, 20, [])
    assert similar and {number % DIMENSIONS for number in similar} == {7} and min(similar) >= 50_000
    assert table._matrix.nbytes == size
    table.discard(max(similar))
    assert len(table.compare([unit(7)], 0.5, 0.0, 20, [])) == len(similar) - 1
    assert VectorTable().compare([unit(1)], 0.5, 0.0, 20, [3]) == {}
