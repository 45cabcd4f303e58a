"""Servers that die, hang, flood, and will not go."""

import asyncio
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import mcp.types
import pytest

from ferrule import ToolEngine
from ferrule.errors import ExecutionFailed, TransportFault
from ferrule.kinds.mcp import executor as mcp_executor
from ferrule.kinds.mcp import relay, stdio
from ferrule.kinds.mcp.config import McpServerConfig
from ferrule.kinds.mcp.executor import McpExecutor
from ferrule.kinds.mcp.results import PROTOCOL_ERRORS
from ferrule.kinds.mcp.stdio import MAX_LINES_PER_SECOND, ServerLog
from tests.kinds.mcp.mcp_servers import engine_for, executor_for, rough, tool
from tests.support.ports import reserved_port
from tests.support.waiting import is_running, time_out_after_start, until

pytestmark = pytest.mark.integration

pytestmark = pytest.mark.integration


def numbers_in(note: Path) -> list[int]:
    return [int(number) for number in note.read_text().split()] if note.exists() else []


async def test_a_repeatable_call_survives_the_death_of_its_server(tmp_path):
    async with engine_for(rough(trusted=True)) as engine:
        result = await engine.execute("server", {"once": str(tmp_path / "once")}, action="die")
    assert result.is_success and result.metadata["attempts"] == 2


async def test_a_call_that_cannot_be_repeated_is_left_in_doubt_when_its_server_dies(tmp_path):
    async with engine_for(rough("--log", tmp_path / "log")) as engine:
        result = await engine.execute("server", {}, action="pay")
        again = await engine.execute("server", {"x": 1}, action="echo")
    assert "UNKNOWN" in (result.error or "") and "exit code 4" in (result.error or "")
    assert result.metadata["outcome"] == "unknown" and again.text == '{"x": 1}'
    assert (tmp_path / "log").read_text().count('"pay"') == 1


async def test_what_a_server_said_last_is_in_the_message(tmp_path):
    log = tmp_path / "log"
    async with engine_for(rough("--log", log)) as engine:
        other = asyncio.create_task(engine.execute("server", {}, action="never"))
        await until(lambda: '"never"' in log.read_text())
        await engine.execute("server", {"once": str(tmp_path / "once")}, action="die")
        result = await other
    assert "Its last output: I am dying" in (result.error or "") and result.metadata["outcome"] == "unknown"


async def test_a_server_that_hangs_is_ended_and_its_next_call_gets_a_new_one(monkeypatch):
    monkeypatch.setattr(mcp_executor, "PING_TIMEOUT", 0.2)
    async with engine_for(rough()) as engine:
        hung = await engine.execute("server", {}, action="hang", timeout=1)
        await until(lambda: not executor_of(engine).is_connected("server"))
        after = await engine.execute("server", {"x": 1}, action="echo")
    assert hung.error_type == "timeout" and after.is_success


async def test_a_server_that_is_busy_with_other_calls_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_executor, "PING_TIMEOUT", 0.2)
    log = tmp_path / "log"
    async with engine_for(rough("--log", log)) as engine:
        other = asyncio.create_task(engine.execute("server", {}, action="hang", timeout=600))
        await until(lambda: '"hang"' in log.read_text())
        client = executor_of(engine)._client(engine.registry.find_tool("server"))
        late = await time_out_after_start(
            lambda timeout: engine.execute("server", {}, action="never", timeout=timeout), lambda: client._probe
        )
        assert client._probe is not None
        await client._probe  # the ping is not answered
        assert late.error_type == "timeout" and executor_of(engine).is_connected("server")
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other


async def test_a_cancelled_call_is_cancelled_at_the_server_too(tmp_path):
    async with engine_for(rough("--log", tmp_path / "log")) as engine:
        call = asyncio.create_task(engine.execute("server", {}, action="never"))
        await until(lambda: '"never"' in (tmp_path / "log").read_text())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        after = await engine.execute("server", {"x": 1}, action="echo")
    assert "notifications/cancelled" in (tmp_path / "log").read_text() and after.is_success


async def test_a_flood_on_stderr_does_not_stop_the_server():
    async with engine_for(rough()) as engine:
        result = await engine.execute("server", {"megabytes": 10}, action="flood", timeout=120)
    assert result.is_success


def test_of_a_flood_on_stderr_some_lines_a_second_are_logged_and_the_others_counted(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "ferrule.mcp.server")
    now = 100.0
    monkeypatch.setattr(stdio, "time", SimpleNamespace(monotonic=lambda: now))
    log = ServerLog("server")
    for second in (100.0, 100.9, 101.0, 102.5):
        now = second
        for _ in range(50):
            log.feed(b"x" * 1023 + b"\n" + b"y\n" * 20)
    log.end()
    messages = [record.getMessage() for record in caplog.records]
    dropped = [int(number) for message in messages for number in re.findall(r"lines=<(\d+)> \| not logged", message)]
    assert len(messages) - len(dropped) == 3 * MAX_LINES_PER_SECOND
    assert len(dropped) == 3 and sum(dropped) + 3 * MAX_LINES_PER_SECOND == 4 * 50 * 21


async def test_lines_on_stdout_that_are_no_messages_are_logged_and_passed_over(caplog):
    async with engine_for(rough()) as engine:
        result = await engine.execute("server", {}, action="noise")
    assert result.is_success and "not a protocol message, on standard output: Loading model" in caplog.text


async def test_two_thousand_actions_are_listed_page_by_page():
    async with executor_for() as executor:
        listing = await executor.connect(tool(rough("--tools", 2000)))
    names = [capability.name for capability in listing.capabilities]
    assert len(names) == 2014 and names[-1] == "tool_1999"


async def test_a_server_that_ends_at_an_unknown_greeting_gets_the_old_one():
    async with executor_for() as executor:
        listing = await executor.connect(tool(rough("--strict-greeting")))
    assert listing.protocol_version == "2025-11-25"


@pytest.mark.parametrize("manner", ["--ignore-eof", "--stubborn"])
async def test_nothing_is_left_running_even_of_a_server_that_does_not_want_to_go(manner, tmp_path):
    note = tmp_path / "children"
    async with executor_for() as executor:
        await executor.connect(tool(rough(manner, "--child", note)))
        await until(lambda: len(numbers_in(note)) == 2)  # a child and a grandchild
        assert all(map(is_running, numbers_in(note)))
    assert not any(map(is_running, numbers_in(note)))


async def test_closing_ends_a_server_that_is_still_starting(tmp_path):
    note = tmp_path / "children"
    async with executor_for() as executor:
        starting = asyncio.create_task(executor.connect(tool(rough("--silent", "--child", note))))
        await until(lambda: len(numbers_in(note)) == 2)
    assert not any(map(is_running, numbers_in(note)))
    with pytest.raises(TransportFault, match="was closed"):
        await starting


async def test_a_server_that_ends_while_it_starts_says_why():
    async with executor_for() as executor:
        with pytest.raises(TransportFault, match="exit code 1") as failure:
            await executor.connect(tool(rough("--crash", "no database here")))
    assert "Its last output: no database here" in str(failure.value)


async def test_a_server_that_greets_people_on_standard_output_is_understood_all_the_same(caplog):
    async with engine_for(rough("--banner")) as engine:
        result = await engine.execute("server", {"x": 1}, action="echo")
    assert result.is_success and "not a protocol message, on standard output: Welcome!" in caplog.text


async def test_an_answer_that_comes_twice_or_for_nobody_confuses_no_other_call():
    async with engine_for(rough()) as engine:
        twice = await engine.execute("server", {}, action="twice")
        stray = await engine.execute("server", {"x": 1}, action="stray")
        after = await engine.execute("server", {"x": 2}, action="echo")
    assert (twice.text, stray.text, after.text) == ("first", '{"x": 1}', '{"x": 2}')


@pytest.mark.long
async def test_an_answer_of_fifty_megabytes_is_read_and_one_without_measure_is_not():
    async with engine_for(rough()) as engine:
        big = await engine.execute("server", {"size": 50 * 1024 * 1024}, action="big", timeout=600)
        too_big = await engine.execute("server", {"size": 70 * 1024 * 1024}, action="big", timeout=600)
        after = await engine.execute("server", {"x": 1}, action="echo")
    assert big.is_success and after.is_success
    assert too_big.metadata["outcome"] == "unknown" and "more than 67,108,864 bytes" in (too_big.error or "")


async def test_a_server_that_says_its_list_changed_all_the_time_is_asked_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "MIN_RELIST_PAUSE", 3600.0)
    monkeypatch.setattr(relay, "MAX_RELIST_PAUSE", 3600.0)
    log = tmp_path / "log"
    async with engine_for(rough("--log", log)) as engine:
        for _ in range(5):
            await engine.execute("server", {"times": 200}, action="changed")
            await until(lambda: log.read_text().count('"tools/list"') == 2)
        answered = await engine.execute("server", {"x": 1}, action="echo")
    assert answered.is_success and log.read_text().count('"tools/list"') == 2


async def test_a_server_that_wants_our_model_or_our_folders_is_refused_and_the_call_goes_on():
    async with engine_for(rough()) as engine:
        result = await engine.execute("server", {}, action="ask_model")
    codes = [message["error"]["code"] for message in json.loads(result.text)]
    assert codes == [-32600, -32600]


async def test_a_server_that_never_answers_is_given_up():
    async with executor_for() as executor:
        with pytest.raises(TransportFault, match=r"did not start within 0\.3 s"):
            await executor.connect(tool(rough("--silent", start_timeout=0.3)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (McpServerConfig(command="no-such-program"), "was not found: install it"),
        (rough(cwd="/no/such/folder"), "'/no/such/folder' to start it in does not exist"),
        (rough(env={"TOKEN": "${NO_SUCH_VARIABLE}"}), "'NO_SUCH_VARIABLE' is not set"),
    ],
)
async def test_a_server_that_cannot_start_says_why(config, said):
    async with executor_for() as executor:
        with pytest.raises(ExecutionFailed, match=said):
            await executor.connect(tool(config))


async def test_a_server_that_cannot_be_reached_is_not_tried_again_at_once(monkeypatch):
    monkeypatch.setattr(mcp_executor, "MIN_DELAY", 3600.0)
    monkeypatch.setattr(mcp_executor, "MAX_DELAY", 3600.0)
    with reserved_port() as port:
        config = McpServerConfig(url=f"ws://127.0.0.1:{port}")
        async with executor_for() as executor:
            with pytest.raises(TransportFault, match="cannot be used"):
                await executor.connect(tool(config))
            with pytest.raises(TransportFault, match="next try in") as refused:
                await executor.connect(tool(config))
    assert 0 < refused.value.details["retry_after"] <= 3600


async def test_errors_of_the_protocol_become_errors_of_ours():
    error_types = {
        -32602: "validation_error",
        -32601: "execution_error",
        -32042: "approval_required",
        -1: "execution_error",
    }
    async with engine_for(rough()) as engine:
        results = {code: await engine.execute("server", {"code": code}, action="refuse") for code in error_types}
    assert {code: result.error_type for code, result in results.items()} == error_types
    assert all("no" in (result.error or "") for result in results.values())


def test_every_error_code_of_the_protocol_is_in_the_table():
    codes = {value for name, value in vars(mcp.types).items() if name.isupper() and type(value) is int and value < 0}
    assert codes == set(PROTOCOL_ERRORS)


async def test_a_changed_entry_gets_a_new_server_and_running_calls_keep_the_old():
    async with executor_for() as executor:
        await executor.connect(tool(rough()))
        listing = await executor.connect(tool(rough("--tools", 1)))
        assert "tool_0" in {capability.name for capability in listing.capabilities}


async def test_a_server_is_asked_whether_it_lives():
    async with executor_for() as executor:
        assert await executor.ping(tool(rough())) > 0
        assert executor.is_connected("server")
        await executor.disconnect("server")
        assert not executor.is_connected("server")


def executor_of(engine: ToolEngine) -> McpExecutor:
    executor = engine._executors.get("mcp")
    assert isinstance(executor, McpExecutor)
    return executor
