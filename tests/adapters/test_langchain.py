"""A library's tools in LangChain."""

import asyncio
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolExecutionResult, UnifiedToolLibrary
from ferrule.adapters.bridge import LibraryThread, RunMemories
from ferrule.errors import SetupError, StoreError
from tests.adapters import bridged_tools as ours
from tests.adapters.langchain_turns import asked, conversation


@pytest.fixture(scope="module", autouse=True)
def as_langchain_tools() -> Any:
    """LangChain takes a second and much memory to load: in one process, and not before it is used."""
    from ferrule.adapters.langchain import as_langchain_tools

    return as_langchain_tools


async def test_a_failure_is_a_message_that_says_so(as_langchain_tools):
    async with UnifiedToolLibrary() as library:
        library.register(ours.Diary(), ours.add)
        turns = asked("Diary__fail", reason="rain"), asked("add", a="one"), asked("add", a=1), "I give up."
        messages = await conversation(as_langchain_tools(library), *turns)
    failed, wrong, right = messages[2:8:2]
    assert (failed.status, failed.content) == ("error", "ValueError: rain")
    assert (right.status, type(right.artifact)) == ("success", ToolExecutionResult)
    assert (wrong.status, "a: " in wrong.content) == ("error", True)


async def test_with_a_memory_a_call_that_is_known_to_fail_is_not_made_again(as_langchain_tools):
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [asked("Diary__fail", str(n), reason="rain") for n in range(4)]
        messages = await conversation(as_langchain_tools(library, memory=True), *turns, "I give up.")
        await conversation(as_langchain_tools(library, memory=True), turns[0], "Another run.")
    assert diary.calls == 2
    assert messages[8].status == "error"


async def test_without_a_memory_every_call_is_made(as_langchain_tools):
    diary = ours.Diary()
    async with UnifiedToolLibrary() as library:
        library.register(diary)
        turns = [asked("Diary__fail", str(n), reason="rain") for n in range(4)]
        await conversation(as_langchain_tools(library), *turns, "I give up.")
    assert diary.calls == 4


async def test_arguments_may_have_names_that_langchain_uses_itself(as_langchain_tools):
    async with UnifiedToolLibrary() as library:
        library.register(ours.odd)
        [tool] = as_langchain_tools(library, tools=["math.odd"])
        said = await tool.ainvoke({"number": 1, "self": "mine", "run_manager": "me"})
    assert (tool.name, said) == ("math-2e-odd", '{"number":1,"self":"mine","config":"c","args":"a","run_manager":"me"}')


def test_only_some_tools_are_handed_out_on_request(as_langchain_tools):
    library = UnifiedToolLibrary()
    library.register(ours.add, ours.Diary(), ours.odd)
    tools = as_langchain_tools(library, tools=["Diary", "math.odd"])
    assert [tool.name for tool in tools] == ["Diary__ask_again", "Diary__fail", "math-2e-odd"]
    with pytest.raises(SetupError, match="no tool 'ad'. Did you mean 'add'"):
        as_langchain_tools(library, tools=["ad"])


async def test_a_sync_call_on_the_librarys_own_loop_says_what_to_do_instead(as_langchain_tools):
    async with UnifiedToolLibrary() as library:
        library.register(ours.add)
        [tool] = as_langchain_tools(library, tools=["add"])
        with pytest.raises(SetupError, match="Use the async call"):
            tool.invoke({"a": 1})


def test_a_program_without_event_loop_opens_the_library_in_a_thread(as_langchain_tools):
    library = UnifiedToolLibrary()
    library.register(ours.add)
    with LibraryThread(library):
        [tool] = as_langchain_tools(library, tools=["add"])
        said = [tool.invoke({"a": n}) for n in range(3)]
        assert "ferrule-library" in [thread.name for thread in threading.enumerate()]
    assert said == ["1", "2", "3"]
    assert "ferrule-library" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(SetupError, match="has ended"):
        tool.invoke({"a": 1})


def test_an_async_call_on_another_loop_is_made_on_the_librarys_loop(as_langchain_tools):
    library = UnifiedToolLibrary()
    library.register(ours.add)
    with LibraryThread(library):
        [tool] = as_langchain_tools(library, tools=["add"])
        assert asyncio.run(tool.ainvoke({"a": 1})) == "2"


def test_a_library_whose_opening_is_cancelled_keeps_nobody_waiting():
    class Cancelled(UnifiedToolLibrary):
        async def initialize(self) -> None:
            raise asyncio.CancelledError

    with pytest.raises((CancelledError, asyncio.CancelledError)):
        LibraryThread(Cancelled()).start()


def test_memories_of_runs_may_be_asked_for_by_many_threads():
    memories, numbers = RunMemories(), range(400)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            [*threads.map(lambda start: [memories.of(str((start + n * 7) % 400)) for n in numbers], range(50))]
    finally:
        sys.setswitchinterval(before)
    assert memories.of("1") is memories.of("1")


def test_a_library_that_cannot_be_opened_says_why(tmp_path: Path):
    (tmp_path / "file").touch()
    library = UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/file/calls.db")
    with pytest.raises(StoreError):
        LibraryThread(library).start()


@pytest.mark.parametrize(
    ("reply", "wiped"),
    [
        ({"approved": True}, ["/a"]),
        ({"approved": False}, []),
        ({"approved": True, "approval_id": "of-another-call"}, []),
        (True, []),
    ],
)
async def test_a_destructive_call_interrupts_the_graph_until_it_is_approved(reply, wiped, as_langchain_tools):
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.types import Command

    disk = ours.Disk()
    async with UnifiedToolLibrary() as library:
        library.register(disk)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [asked("Disk", path="/a")]})
        graph.add_node("tools", ToolNode(as_langchain_tools(library)))
        graph.set_entry_point("model")
        graph.add_edge("model", "tools")
        compiled = graph.compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "monday"}}
        state = await compiled.ainvoke({"messages": [HumanMessage("Go.")]}, config)
        [request] = state["__interrupt__"]
        assert request.value["args"] == {"path": "/a"} and disk.wiped == []
        if isinstance(reply, dict):
            reply = {"approval_id": request.value["approval_id"], **reply}
        state = await compiled.ainvoke(Command(resume=reply), config)
    assert disk.wiped == wiped
    assert state["messages"][-1].status == ("success" if wiped else "error")


async def test_a_destructive_call_outside_of_a_graph_fails_and_says_that_it_needs_approval(as_langchain_tools):
    disk = ours.Disk()
    async with UnifiedToolLibrary() as library:
        library.register(disk)
        messages = await conversation(as_langchain_tools(library), asked("Disk", path="/a"), "I may not.")
    assert messages[2].status == "error" and "approval" in messages[2].content and disk.wiped == []
