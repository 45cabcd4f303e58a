"""What may succeed is not held back."""

import asyncio
from typing import Any

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.memory import RunMemory
from ferrule.testing import ScriptedModel
from tests.memory.runs import Runner, open_run


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("if x:\npass", "if x:\n    pass"), ("  return x", "    return x"), ("a  b", "a b"), ("x\n", "x")],
)
async def test_spaces_count_where_they_are_part_of_what_is_said(wrong: str, right: str):
    @tool
    async def replace(old: str, new: str) -> str:
        if old != right:
            raise ValueError(f"{old!r} not found in the file")
        return "replaced"

    async with open_run(replace) as call:
        await call("replace", old=wrong, new="y")
        assert (await call("replace", old=right, new="y")).is_success


async def test_the_same_id_of_another_kind_of_thing_is_another_question():
    @tool(name="shop")
    class Shop:
        """A shop."""

        @tool(read_only=True)
        async def get_order(self, id: str) -> str:
            raise LookupError(f"Order {id} not found")

        @tool(read_only=True)
        async def get_customer(self, id: str) -> str:
            return "Ann"

    async with open_run(Shop()) as call:
        await call("shop", "get_order", id="c-17")
        assert (await call("shop", "get_customer", id="c-17")).output == {"result": "Ann"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tab_id": 1}, {"tab_id": 2}),
        ({}, {"frame": "main"}),
        ({"account": "a"}, {"account": "b"}),
        ({}, {"page": 2}),
        ({"url": "https://a.test"}, {"url": "https://b.test"}),
    ],
)
async def test_a_selector_somewhere_else_is_another_question(first: dict[str, Any], second: dict[str, Any]):
    made = []

    @tool(read_only=True)
    async def extract(
        selector: str, tab_id: int = 0, frame: str = "", account: str = "", page: int = 0, url: str = ""
    ) -> str:
        made.append(selector)
        raise ValueError(f"Selector {selector!r} not found")

    async with open_run(extract) as call:
        await call("extract", selector="a.stars", **first)
        await call("extract", selector="a.stars", **second)
        assert len(made) == 2


async def test_a_search_that_found_nothing_may_be_made_elsewhere():
    @tool(read_only=True)
    async def search(query: str, site: str | None = None) -> str:
        if site is None:
            raise LookupError(f"no results for {query!r}")
        return "found"

    async with open_run(search) as call:
        await call("search", query="ferrule")
        assert (await call("search", query="ferrule", site="b.test")).is_success


async def test_another_tool_may_have_made_the_way_free():
    is_open = False

    @tool
    async def open_page(url: str) -> str:
        nonlocal is_open
        is_open = True
        return "open"

    @tool
    async def click(selector: str) -> str:
        if not is_open:
            raise RuntimeError("no page is open")
        return "clicked"

    async with open_run(open_page, click) as call:
        await call("click", selector="a.stars")
        assert (await call("click", selector="a.stars")).error_type == "known_failure"
        await call("open_page", url="https://a.test")
        assert (await call("click", selector="a.stars")).is_success


async def test_but_not_for_ever():
    made = []

    @tool
    async def note(text: str) -> str:
        return text

    @tool
    async def click(selector: str) -> str:
        made.append(selector)
        raise RuntimeError("it does not move")

    async with open_run(note, click) as call:
        for number in range(10):
            await call("click", selector="a.stars")
            await call("note", text=f"still nothing, {number}")
        assert len(made) == 2


async def test_what_was_seen_to_be_there_may_be_asked_for():
    there: list[str] = []

    @tool(read_only=True)
    async def read(path: str) -> str:
        if path not in there:
            raise FileNotFoundError(f"No such file: {path}")
        return "text"

    @tool(read_only=True)
    async def ls(folder: str) -> list[str]:
        return there

    async with open_run(read, ls) as call:
        await call("read", path="notes.txt")
        await call("ls", folder=".")
        assert (await call("read", path="notes.txt")).error_type == "known_failure"
        there.append("notes.txt")  # by somebody else
        await call("ls", folder=".")
        assert (await call("read", path="notes.txt")).is_success


async def test_a_selector_that_was_found_after_all_is_found_in_other_calls():
    appears_after = 3.0

    @tool(name="browser")
    class Browser:
        """A page."""

        @tool(read_only=True)
        async def text(self, selector: str, timeout: float = 1) -> str:
            return self._find(selector, timeout)

        @tool(read_only=True)
        async def link(self, selector: str, timeout: float = 1) -> str:
            return self._find(selector, timeout)

        def _find(self, selector: str, timeout: float) -> str:
            nonlocal appears_after
            if timeout < appears_after:
                raise RuntimeError(f"Timeout exceeded while waiting for selector {selector!r}")
            appears_after = 0
            return "28"

    async with open_run(Browser()) as call:
        await call("browser", "text", selector="a.stars")
        assert (await call("browser", "link", selector="a.stars", timeout=5)).is_success
        assert (await call("browser", "link", selector="a.stars", timeout=1)).is_success
        assert (await call("browser", "text", selector="a.stars", timeout=1)).is_success


async def test_a_connection_that_broke_off_is_tried_again_where_that_does_no_harm():
    made: list[str] = []

    def make(name: str, read_only: bool = False) -> Any:
        @tool(name=name, read_only=read_only)
        async def fetch() -> str:
            made.append(name)
            raise ConnectionResetError("Connection reset by peer")

        return fetch

    async with open_run(make("read", read_only=True), make("pay")) as call:
        call.context.max_retries = 0
        for _ in range(5):
            await call("read")
            await call("pay")
        assert made.count("pay") == 1 and made.count("read") == 3


async def test_a_memory_that_fails_costs_no_call():
    class Broken(RunMemory):
        def find_result(self, tool, capability, params):
            raise RuntimeError("find_result")

        def record_result(self, tool, capability, params, result):
            raise RuntimeError("record_result")

    @tool
    async def add(a: int) -> int:
        return a + 1

    async with ToolEngine() as engine:
        engine.register(add)
        assert (await Runner(engine, Broken())("add", a=1)).output == {"result": 2}
        assert len(await engine.query_call_records(status="success")) == 1


async def test_a_person_who_answers_at_once_opens_what_failed_too():
    there: list[str] = []

    @tool(read_only=True)
    async def read(path: str) -> str:
        if path not in there:
            raise FileNotFoundError(f"{path} not found")
        return "text"

    class Ann:
        async def answer(self, question):
            there.append("a.txt")
            return "I have put it there."

        async def approve(self, request):
            return None

    async with UnifiedToolLibrary() as library:
        library.register(read)
        one = {"name": "read", "arguments": {"path": "a.txt"}}
        ask = {"name": "ask_user", "arguments": {"question": "Where is it?"}}
        answer = await Agent(library, ScriptedModel([one, ask, one, "ok"]), person=Ann()).run("Read a.txt")
        assert [step.is_success for step in answer.steps] == [False, True, True]


async def test_a_tool_that_spoils_its_arguments_is_still_known():
    made = []

    @tool
    async def sort(items: list[int]) -> None:
        made.append(1)
        items.clear()
        raise ValueError("never works")

    async with open_run(sort) as call:
        for _ in range(3):
            await call("sort", items=[3, 1, 2])
            await asyncio.sleep(0)
        assert len(made) == 1
