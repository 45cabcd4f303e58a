"""One by one: who is called next, and when nobody must be."""

import asyncio
from typing import Any

import pytest

from ferrule import Effects, Invocation, Tool, ToolCapability, ToolExecutionContext, ToolSpec
from ferrule.errors import NeedsApproval, TransportFault
from ferrule.hub import ToolHub, hub_result_dict
from tests.hub.making import FOREVER, Diary, engine_with, made

CHANGES: dict[str, Any] = {"read_only": False, "tags": ["send"]}
"""For tools that change the world: called one by one."""


async def test_a_single_candidate_is_called_directly():
    diary = Diary()
    async with engine_with(diary.search("find", "it")) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
        [record] = await engine.query_call_records()
    assert (result.call_id, record.metadata) == (record.record_id, {})
    assert hub_result_dict(result) == {
        "success": True,
        "result": "it",
        "error": None,
        "_meta": {"source": "tools", "synthesized": False, "source_count": 1, "sources": ["tools"]},
    }


async def test_the_failure_of_a_single_candidate_is_the_engines_own():
    diary = Diary()
    async with engine_with(diary.search("find", ValueError("broken"))) as engine:
        by_hub = await ToolHub(engine).execute("find", {"query": "x"})
        by_engine = await engine.execute("find", {"query": "x"})
    assert (by_hub.error, by_hub.error_type) == (by_engine.error, by_engine.error_type)
    assert hub_result_dict(by_hub)["result"] is None


async def test_the_next_candidate_is_called_when_one_fails():
    diary = Diary()
    first = diary.search("send", ValueError("broken"), **CHANGES)
    second = diary.search("send", "sent", source="mcps", **CHANGES)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("send", {"query": "x"})
    assert (result.text, result.metadata["_meta"]["source"]) == ("sent", "mcps")
    assert result.metadata["failures"][0]["error_type"] == "execution_error"


async def test_when_all_fail_the_one_failure_names_each_candidate_and_its_error():
    diary = Diary()
    first = diary.search("send", ValueError("no stamps"), **CHANGES)
    second = diary.search("send", ValueError("no paper"), source="mcps", **CHANGES)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("send", {"query": "x"})
    assert (result.is_success, result.error_type, result.tool_name) == (False, "execution_error", "send")
    assert result.error is not None
    lines = result.error.splitlines()
    assert lines[1].startswith("send (tools): ") and "no stamps" in lines[1]
    assert lines[2].startswith("send (mcps): ") and "no paper" in lines[2]
    assert result.metadata["_meta"]["sources"] == ["tools", "mcps"]


async def test_what_changes_the_world_and_says_nothing_is_not_done_again():
    diary = Diary()
    tools = [diary.search(s, None, source=s, **CHANGES) for s in ("tools", "mcps")]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine).execute_by_capability("send", {"query": "x"})
    assert result.is_success
    assert diary.started == ["tools"]


async def test_after_a_silent_success_nobody_is_asked_who_would_do_it_again():
    diary = Diary()
    silent = diary.search("switch", None, read_only=False, idempotent=True)
    others = [diary.search("switch", "done", source=s, read_only=False) for s in ("skills", "mcps")]
    async with engine_with(silent, *others) as engine:
        result = await ToolHub(engine).execute("switch", {"query": "x"})
    assert (result.is_success, diary.started) == (True, ["switch"])
    assert result.metadata["skipped"][0]["reason"] == "switch (tools) has succeeded already."


async def test_a_silent_success_among_several_ends_the_job_too():
    diary = Diary()
    looks = diary.search("switch", [], source="tools", metadata={"strategy": "synthesize"})
    silent = diary.search("switch", None, source="skills", read_only=False, idempotent=True)
    last = diary.search("switch", "done", source="mcps", idempotent=True, destructive=True)
    async with engine_with(looks, silent, last) as engine:
        result = await ToolHub(engine).execute("switch", {"query": "x"})
    assert (result.is_success, diary.started) == (True, ["switch", "switch"])


async def test_nobody_does_without_asking_what_waits_for_approval():
    diary = Diary()
    asks = diary.search("pay", NeedsApproval("May I?"), **CHANGES)
    async with engine_with(asks, diary.search("pay", "paid", source="mcps", **CHANGES)) as engine:
        result = await ToolHub(engine).execute("pay", {"query": "x"})
    assert (result.text, result.metadata["advice"], diary.started) == ("May I?", "ask_approval", ["pay"])
    assert result.metadata["skipped"][0]["reason"] == "pay (tools) waits for a person's approval."


async def test_when_all_others_fail_the_one_that_waits_for_approval_is_the_answer():
    diary = Diary()
    asks = diary.search("find", NeedsApproval("May I?"))
    async with engine_with(asks, diary.search("find", ValueError("broken"), source="mcps")) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert (result.text, result.metadata["advice"]) == ("May I?", "ask_approval")


async def test_a_tool_that_only_shares_its_name_with_an_allowed_one_is_not_called():
    diary = Diary()

    class Stranger:
        """Somebody else."""

        def find(self, query: str) -> str:
            """Find."""
            return "stolen"

        def other(self) -> str:
            """Do something else."""
            return ""

    context = ToolExecutionContext(allowed_tools=frozenset({"find"}))
    tools = [diary.search("find", "it", tags=["look"]), made(Stranger(), source="mcps", read_only=True, tags=["look"])]
    async with engine_with(*tools) as engine:
        hub = ToolHub(engine)
        results = [await hub.execute("find", {"query": "x"}, context)]
        refused = await hub.execute("Stranger", {"query": "x"}, context, action="find")
    assert [result.text for result in results] == ["it"]
    assert (refused.error_type, refused.metadata["_meta"]["sources"]) == ("permission_denied", [])


async def test_when_a_lookup_finds_nothing_nobody_is_asked_who_changes_the_world():
    diary = Diary()
    tools = [diary.search("find", [], source=s) for s in ("tools", "skills")]
    changes = diary.search("find", "made it", source="mcps", read_only=False)
    async with engine_with(*tools, changes) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert (result.output, diary.started) == ({"result": []}, ["find", "find"])
    assert result.metadata["skipped"][0]["candidate"] == "find (mcps)"


class BreaksOff:
    """Loses its connection after the request went out."""

    async def execute(self, invocation: Invocation, /) -> Any:
        raise TransportFault("The connection broke.", outcome="unknown")


def breaks_off(effects: Effects) -> Tool:
    action = ToolCapability(name="pay", description="Pay.", parameters={"query": {"type": "string"}})
    return Tool(spec=ToolSpec(tool_id="pay", capabilities=[action], effects=effects), handler="breaks_off")


@pytest.mark.parametrize(("effects", "started"), [(Effects(), []), (Effects(idempotent=True), ["pay"])])
async def test_what_may_have_been_done_is_not_done_by_another(effects: Effects, started: list[str]):
    diary = Diary()
    async with engine_with(breaks_off(effects), diary.search("pay", "paid", source="mcps", read_only=False)) as engine:
        engine.register_executor("breaks_off", BreaksOff())
        result = await ToolHub(engine).execute("pay", {"query": "x"}, ToolExecutionContext(max_retries=0))
    assert diary.started == started
    assert result.is_success is bool(started)
    assert ("skipped" in result.metadata) is not bool(started)


async def test_a_timed_out_call_may_have_been_done_too():
    diary = Diary()
    hangs = diary.search("pay", seconds=FOREVER, **CHANGES)
    other = diary.search("pay", "paid", source="mcps", **CHANGES)
    async with engine_with(hangs, other) as engine:
        result = await ToolHub(engine).execute("pay", {"query": "x"}, ToolExecutionContext(timeout=0.05))
    assert (result.error_type, diary.started) == ("timeout", ["pay"])
    assert result.metadata["skipped"] == [
        {"candidate": "pay (mcps)", "reason": "pay (tools) failed, but may have done it already."}
    ]


async def test_a_timed_out_lookup_is_given_to_the_next():
    diary = Diary()
    hangs = diary.search("find", seconds=FOREVER, destructive=True)
    other = diary.search("find", "it", source="mcps")
    async with engine_with(hangs, other) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"}, ToolExecutionContext(timeout=0.05))
    assert result.text == "it"


async def test_an_unknown_name_is_answered_and_recorded_as_the_engine_does():
    async with engine_with(Diary().search("find")) as engine:
        result = await ToolHub(engine).execute("fnid", {"query": "x"})
        [record] = await engine.query_call_records()
    assert (result.error_type, record.record_id) == ("tool_not_found", result.call_id)
    assert "Did you mean 'find'?" in result.text
    assert result.metadata["_meta"] == {"source": "", "synthesized": False, "source_count": 0, "sources": []}


async def test_an_unknown_tag_is_answered_with_the_nearest():
    async with engine_with(Diary().search("find", tags=["search"])) as engine:
        result = await ToolHub(engine).execute_by_capability("serch", {"query": "x"})
    assert (result.error_type, result.tool_name) == ("tool_not_found", "serch")
    assert "Did you mean 'search'?" in result.text


async def test_tools_can_use_the_hub_themselves():
    diary = Diary()
    lookups = [diary.search(s, s, source=s, tags=["lookup"]) for s in ("tools", "mcps")]

    async def ask(query: str) -> str:
        """Ask all."""
        return (await hub.execute_by_capability("lookup", {"query": query})).text

    async with engine_with(*lookups, made(ask)) as engine:
        hub = ToolHub(engine)
        result = await asyncio.wait_for(hub.execute("ask", {"query": "x"}), 5)
        parents = {r.tool_name: r.parent_id for r in await engine.query_call_records()}
    assert "tools" in result.text and "mcps" in result.text
    assert parents == {"ask": None, "tools": result.call_id, "mcps": result.call_id}
