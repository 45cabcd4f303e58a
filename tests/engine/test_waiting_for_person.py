"""Calls that wait for a person hold up nobody: neither their slots nor their timeouts run meanwhile."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule import ConcurrencyConfig, ToolEngine, ToolEngineConfig, ToolExecutionContext, tool
from ferrule.agent.control_tools import conversation_tools
from ferrule.core.elicitation import Elicitation
from tests.kinds.mcp.mcp_servers import SDK_SERVER
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

CONFIG = ToolEngineConfig(builtin_tools=False, auto_reload=False, tools_directory="no-such-folder")


class Person:
    """Answers when told to."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer, self.questions = answer, list[str]()
        self.is_ready = asyncio.Event()

    async def ask(self, question: Elicitation) -> dict[str, Any] | None:
        self.questions.append(question.message)
        await self.is_ready.wait()
        return self.answer


@tool
async def quick() -> str:
    """Answer."""
    return "done"


@in_virtual_time
async def test_open_questions_take_no_slots():
    person = Person({"answer": "yes"})
    limits = ConcurrencyConfig(max_concurrent=3)
    async with ToolEngine(CONFIG, concurrency=limits, on_elicit=person.ask) as engine:
        engine.register(quick, *conversation_tools(engine.store, engine.on_elicit))
        calls = [asyncio.create_task(engine.execute("ask_user", {"question": str(n)}, timeout=30)) for n in range(10)]
        await until(lambda: len(person.questions) == 10)
        assert engine.concurrency.get_metrics().current_concurrent == 0
        assert (await engine.execute("quick")).is_success
        person.is_ready.set()
        results = await asyncio.gather(*calls)
        assert [r.output for r in results] == [{"answer": "yes"}] * 10
        assert engine.concurrency.get_metrics().current_concurrent == 0


@in_virtual_time
async def test_an_answered_call_takes_a_slot_before_it_goes_on():
    person, is_over = Person({"answer": "yes"}), asyncio.Event()
    running = 0

    @tool
    async def busy() -> None:
        """Hold the slot."""
        nonlocal running
        running += 1
        await is_over.wait()
        running -= 1

    async with ToolEngine(CONFIG, concurrency=ConcurrencyConfig(max_concurrent=1), on_elicit=person.ask) as engine:
        engine.register(busy, *conversation_tools(engine.store, engine.on_elicit))
        asking = asyncio.create_task(engine.execute("ask_user", {"question": "Go on?"}, timeout=1))
        await until(lambda: person.questions)
        holding = asyncio.create_task(engine.execute("busy", timeout=1000))
        await until(lambda: running)
        person.is_ready.set()
        await asyncio.sleep(100)  # virtual: longer than its timeout
        assert not asking.done()  # it waits for the only slot, and its clock stands still
        is_over.set()
        assert (await asking).is_success and (await holding).is_success


@in_virtual_time
async def test_the_calls_around_a_question_wait_too():
    person = Person({"answer": "yes"})

    @tool
    async def outer(context: ToolExecutionContext) -> str:
        """Ask through another tool."""
        return (await context.call_tool("ask_user", {"question": "May I?"})).text

    async with ToolEngine(CONFIG, concurrency=ConcurrencyConfig(max_concurrent=1), on_elicit=person.ask) as engine:
        engine.register(quick, outer, *conversation_tools(engine.store, engine.on_elicit))
        call = asyncio.create_task(engine.execute("outer", timeout=5))
        await until(lambda: person.questions)
        await asyncio.sleep(100)  # virtual: longer than its timeout
        assert (await engine.execute("quick")).is_success
        person.is_ready.set()
        assert (await call).is_success


@in_virtual_time
async def test_a_call_that_is_cancelled_while_it_asks_leaves_no_slot_behind():
    person = Person({})
    async with ToolEngine(CONFIG, concurrency=ConcurrencyConfig(max_concurrent=1), on_elicit=person.ask) as engine:
        engine.register(quick, *conversation_tools(engine.store, engine.on_elicit))
        call = asyncio.create_task(engine.execute("ask_user", {"question": "?"}))
        await until(lambda: person.questions)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        assert (await engine.execute("quick")).is_success
        assert engine.concurrency.get_metrics().current_concurrent == 0


@pytest.mark.integration
async def test_questions_of_mcp_servers_take_no_slots(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    entry = {"command": sys.executable, "args": [str(SDK_SERVER), "stdio", "--legacy"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"server": entry}}))
    person = Person({"name": "Ada"})
    config = ToolEngineConfig(builtin_tools=False, tools_directory="none", mcp_file=str(tmp_path / "mcp.json"))
    async with ToolEngine(config, concurrency=ConcurrencyConfig(max_concurrent=2), on_elicit=person.ask) as engine:
        engine.register(quick)
        await engine.wait_for_discovery()
        calls = [asyncio.create_task(engine.execute("server__greet", timeout=120)) for _ in range(4)]
        await until(lambda: person.questions and not engine.concurrency.get_metrics().current_concurrent)
        assert (await engine.execute("quick")).is_success
        assert len(person.questions) == 1  # the others wait until the person has answered
        person.is_ready.set()
        assert [r.text for r in await asyncio.gather(*calls)] == ["Hello Ada"] * 4
