"""Notes: what else must not be lost."""

import asyncio
import json
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.store import ToolKnowledgeStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def test_notes_come_back_in_the_order_of_their_keys(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        store.note("run-1", "0002", {"role": "assistant", "content": "三"})
        store.note("run-1", "0001", {"role": "user", "content": "一加二"})
        store.note("run-2", "0001", None)
        assert list((await store.notes("run-1")).items()) == [
            ("0001", {"role": "user", "content": "一加二"}),
            ("0002", {"role": "assistant", "content": "三"}),
        ]
        assert await store.notes("run-2") == {"0001": None}
        assert await store.notes("run-3") == {}


async def test_a_later_note_takes_the_place_of_an_earlier_one(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for number in range(5):
            store.note("state", "run", {"turn": number})
        assert await store.notes("state") == {"run": {"turn": 4}}
        store.note("state", "run", {"turn": 5})
        assert await store.notes("state") == {"run": {"turn": 5}}


async def test_books_are_listed_by_how_their_names_begin(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for book in ("run:a", "run:b", "failures"):
            store.note(book, "1", {})
        assert set(await store.books("run:")) == {"run:a", "run:b"}
        assert set(await store.books()) == {"run:a", "run:b", "failures"}


async def test_notes_can_be_forgotten_one_by_one_or_all(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for key in "abc":
            store.note("book", key, key)
        assert await store.forget_notes("book", ["a", "z"]) == 1
        assert await store.notes("book") == {"b": "b", "c": "c"}
        assert await store.forget_notes("book") == 2
        assert await store.notes("book") == {}


async def test_a_secret_is_not_written_down(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        store.note("book", "1", {"text": "use sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", "password": "hunter22"})
        kept = json.dumps(await store.notes("book"))
        assert "abcdefghijklmnop" not in kept and "hunter22" not in kept


@settings(max_examples=30, deadline=None)
@given(st.lists(JSON, max_size=4))
def test_anything_json_can_say_is_kept(said):
    async def keep() -> dict[str, object]:
        async with ToolKnowledgeStore() as store:
            for number, value in enumerate(said):
                store.note("book", str(number), value)
            assert store.failures == 0
            return await store.notes("book")

    assert len(asyncio.run(keep())) == len(said)


def test_notes_survive_a_killed_process(tmp_path):
    program = (
        "import os, signal, sys\n"
        "from ferrule.store import ToolKnowledgeStore\n"
        "store = ToolKnowledgeStore(sys.argv[1]); store.start()\n"
        "[store.note('run', f'{n:04}', n) for n in range(200)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == -9
    assert _read(url) == list(range(200))


def _read(url: str) -> list[int]:
    async def main() -> list[int]:
        async with ToolKnowledgeStore(url) as store:
            return list((await store.notes("run")).values())

    return asyncio.run(main())
