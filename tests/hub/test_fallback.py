"""One by one: who is called next, and when nobody must be."""

import asyncio
from typing import Annotated, Any

import pytest

from ferrule import (
    Approval,
    Effects,
    Invocation,
    Progress,
    Secret,
    Tool,
    ToolCapability,
    ToolEngineEvent,
    ToolEngineEventType,
    ToolExecutionContext,
    ToolSpec,
    UnifiedToolLibrary,
    report_progress,
    tool,
)
from ferrule.core.permission import Decision, Principal
from ferrule.errors import NeedsApproval, TransportFault
from ferrule.hub import HubConfig, ToolHub, hub_result_dict
from tests.hub.recording_tools import FOREVER, CallRecorder, engine_with, make_tool
from tests.support.virtual_time import virtual_time

anyio_backend = virtual_time

CHANGES: dict[str, Any] = {"read_only": False, "tags": ["send"]}
"""For tools that change the world: called one by one."""


async def test_a_single_candidate_is_called_directly():
    recorder = CallRecorder()
    async with engine_with(recorder.search("find", "it")) as engine:
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
    recorder = CallRecorder()
    async with engine_with(recorder.search("find", ValueError("broken"))) as engine:
        by_hub = await ToolHub(engine).execute("find", {"query": "x"})
        by_engine = await engine.execute("find", {"query": "x"})
    assert (by_hub.error, by_hub.error_type) == (by_engine.error, by_engine.error_type)
    assert hub_result_dict(by_hub)["result"] is None


async def test_the_next_candidate_is_called_when_one_fails():
    recorder = CallRecorder()
    first = recorder.search("send", ValueError("broken"), **CHANGES)
    second = recorder.search("send", "sent", source="mcps", **CHANGES)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("send", {"query": "x"})
    assert (result.text, result.metadata["_meta"]["source"]) == ("sent", "mcps")
    assert result.metadata["failures"][0]["error_type"] == "execution_error"


async def test_when_all_fail_the_one_failure_names_each_candidate_and_its_error():
    recorder = CallRecorder()
    first = recorder.search("send", ValueError("no stamps"), **CHANGES)
    second = recorder.search("send", ValueError("no paper"), source="mcps", **CHANGES)
    async with engine_with(first, second) as engine:
        result = await ToolHub(engine).execute("send", {"query": "x"})
    assert (result.is_success, result.error_type, result.tool_name) == (False, "execution_error", "send")
    assert result.error is not None
    lines = result.error.splitlines()
    assert lines[1].startswith("send (tools): ") and "no stamps" in lines[1]
    assert lines[2].startswith("send (mcps): ") and "no paper" in lines[2]
    assert result.metadata["_meta"]["sources"] == ["tools", "mcps"]


async def test_what_changes_the_world_and_says_nothing_is_not_done_again():
    recorder = CallRecorder()
    tools = [recorder.search(s, None, source=s, **CHANGES) for s in ("tools", "mcps")]
    async with engine_with(*tools) as engine:
        result = await ToolHub(engine).execute_by_capability("send", {"query": "x"})
    assert result.is_success
    assert recorder.started == ["tools"]


async def test_after_a_silent_success_nobody_is_asked_who_would_do_it_again():
    recorder = CallRecorder()
    silent = recorder.search("switch", None, read_only=False, idempotent=True)
    others = [recorder.search("switch", "done", source=s, read_only=False) for s in ("skills", "mcps")]
    async with engine_with(silent, *others) as engine:
        result = await ToolHub(engine).execute("switch", {"query": "x"})
    assert (result.is_success, recorder.started) == (True, ["switch"])
    assert result.metadata["skipped"][0]["reason"] == "switch (tools) has succeeded already."


async def test_a_silent_success_among_several_ends_the_job_too():
    recorder = CallRecorder()
    looks = recorder.search("switch", [], source="tools", metadata={"strategy": "synthesize"})
    silent = recorder.search("switch", None, source="skills", read_only=False, idempotent=True)
    last = recorder.search("switch", "done", source="mcps", idempotent=True, destructive=True)
    async with engine_with(looks, silent, last) as engine:
        result = await ToolHub(engine).execute("switch", {"query": "x"})
    assert (result.is_success, recorder.started) == (True, ["switch", "switch"])


async def test_nobody_does_without_asking_what_waits_for_approval():
    recorder = CallRecorder()
    asks = recorder.search("pay", NeedsApproval("May I?"), **CHANGES)
    async with engine_with(asks, recorder.search("pay", "paid", source="mcps", **CHANGES)) as engine:
        result = await ToolHub(engine).execute("pay", {"query": "x"})
    assert result.text.startswith("May I?") and result.error_type == "approval_required"
    assert recorder.started == ["pay"]
    assert result.metadata["skipped"][0]["reason"] == "pay (tools) waits for a person's approval."


async def test_when_all_others_fail_the_one_that_waits_for_approval_is_the_answer():
    recorder = CallRecorder()
    asks = recorder.search("find", NeedsApproval("May I?"))
    async with engine_with(asks, recorder.search("find", ValueError("broken"), source="mcps")) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert result.text.startswith("May I?") and result.error_type == "approval_required"


async def test_a_tool_that_only_shares_its_name_with_an_allowed_one_is_not_called():
    recorder = CallRecorder()

    class Stranger:
        """Somebody else."""

        def find(self, query: str) -> str:
            """Find."""
            return "stolen"

        def other(self) -> str:
            """Do something else."""
            return ""

    context = ToolExecutionContext(principal=Principal(tools=frozenset({"find"})))
    tools = [
        recorder.search("find", "it", tags=["look"]),
        make_tool(Stranger(), source="mcps", read_only=True, tags=["look"]),
    ]
    async with engine_with(*tools) as engine:
        hub = ToolHub(engine)
        results = [await hub.execute("find", {"query": "x"}, context)]
        refused = await hub.execute("Stranger", {"query": "x"}, context, action="find")
    assert [result.text for result in results] == ["it"]
    assert refused.error_type == "permission_denied" and "may be used here: find" in refused.text


async def test_when_a_lookup_finds_nothing_nobody_is_asked_who_changes_the_world():
    recorder = CallRecorder()
    tools = [recorder.search("find", [], source=s) for s in ("tools", "skills")]
    changes = recorder.search("find", "made it", source="mcps", read_only=False)
    async with engine_with(*tools, changes) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"})
    assert (result.output, recorder.started) == ({"result": []}, ["find", "find"])
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
    recorder = CallRecorder()
    async with engine_with(
        breaks_off(effects), recorder.search("pay", "paid", source="mcps", read_only=False)
    ) as engine:
        engine.register_executor("breaks_off", BreaksOff())
        result = await ToolHub(engine).execute("pay", {"query": "x"}, ToolExecutionContext(max_retries=0))
    assert recorder.started == started
    assert result.is_success is bool(started)
    assert ("skipped" in result.metadata) is not bool(started)


async def test_a_timed_out_call_may_have_been_done_too():
    recorder = CallRecorder()
    hangs = recorder.search("pay", seconds=FOREVER, **CHANGES)
    other = recorder.search("pay", "paid", source="mcps", **CHANGES)
    async with engine_with(hangs, other) as engine:
        result = await ToolHub(engine).execute("pay", {"query": "x"}, ToolExecutionContext(timeout=0.05))
    assert (result.error_type, recorder.started) == ("timeout", ["pay"])
    assert result.metadata["skipped"] == [
        {"candidate": "pay (mcps)", "reason": "pay (tools) failed, but may already have taken effect."}
    ]


async def test_a_timed_out_lookup_is_given_to_the_next():
    recorder = CallRecorder()
    hangs = recorder.search("find", seconds=FOREVER, destructive=True)
    other = recorder.search("find", "it", source="mcps")
    async with engine_with(hangs, other) as engine:
        result = await ToolHub(engine).execute("find", {"query": "x"}, ToolExecutionContext(timeout=1))
    assert result.text == "it"


async def test_an_unknown_name_is_answered_and_recorded_as_the_engine_does():
    async with engine_with(CallRecorder().search("find")) as engine:
        result = await ToolHub(engine).execute("fnid", {"query": "x"})
        [record] = await engine.query_call_records()
    assert (result.error_type, record.record_id) == ("tool_not_found", result.call_id)
    assert "Did you mean 'find'?" in result.text
    assert result.metadata["_meta"] == {"source": "", "synthesized": False, "source_count": 0, "sources": []}


async def test_an_unknown_tag_is_answered_with_the_nearest_and_recorded():
    async with engine_with(CallRecorder().search("find", tags=["search"])) as engine:
        result = await ToolHub(engine).execute_by_capability("serch", {"query": "x"})
        [record] = await engine.query_call_records()
    assert (result.error_type, result.tool_name) == ("tool_not_found", "serch")
    assert "Did you mean 'search'?" in result.text
    assert (record.record_id, record.error) == (result.call_id, result.error)


async def test_arguments_that_fit_no_candidate_are_recorded_and_emitted_without_their_values():
    recorder = CallRecorder()
    events: list[ToolEngineEvent] = []

    async def find(query: Annotated[int, Secret()]) -> str:
        """Look something up."""
        return "it"

    first, second = recorder.search("find", tags=["lookup"]), make_tool(find, source="mcps", tags=["lookup"])
    async with engine_with(first, second) as engine:
        engine.subscribe(events.append)
        hub, wrong, context = ToolHub(engine), {"query": ["my-code"]}, ToolExecutionContext(tool_call_id="c1")
        results = [await hub.execute("find", wrong, context), await hub.execute_by_capability("lookup", wrong)]
        records = await engine.query_call_records()
        await engine.events.drain()
    assert [result.error_type for result in results] == ["validation_error"] * 2 and not recorder.started
    assert sorted(record.record_id for record in records) == [result.call_id for result in results]
    assert all("find (tools) was skipped: " in str(record.error) for record in records)
    assert [str(event.event_type.value) for event in events] == [
        *["before_tool_call", "validation_error", "after_tool_call"] * 2
    ]
    assert "c1" in str([record.metadata for record in records])
    assert "my-code" in str(results[0].error) and "my-code" not in str(records) + str(events)


async def test_a_tool_that_is_listed_late_has_the_timeout_and_the_progress_of_its_caller():
    """The engine makes the call of a name for which the hub has no candidate."""
    progress: list[Progress] = []

    @tool
    async def find(query: str, context: ToolExecutionContext) -> str:
        """Look something up."""
        report_progress(0.5, "half")
        await asyncio.sleep(FOREVER)
        return "it"

    async with engine_with() as engine:
        hub = ToolHub(engine)
        engine.subscribe(lambda event: engine.register(find), [ToolEngineEventType.BEFORE_TOOL_CALL])
        result = await hub.execute("find", {"query": "x"}, timeout=60, on_progress=progress.append)
    assert (result.error_type, [each.message for each in progress]) == ("timeout", ["half"])


async def test_tools_can_use_the_hub_themselves():
    recorder = CallRecorder()
    lookups = [recorder.search(s, s, source=s, tags=["lookup"]) for s in ("tools", "mcps")]

    async def ask(query: str) -> str:
        """Ask all."""
        return (await hub.execute_by_capability("lookup", {"query": query})).text

    async with engine_with(*lookups, make_tool(ask)) as engine:
        hub = ToolHub(engine)
        result = await asyncio.wait_for(hub.execute("ask", {"query": "x"}), 30)
        parents = {r.tool_name: r.parent_id for r in await engine.query_call_records()}
    assert "tools" in result.text and "mcps" in result.text
    assert parents == {"ask": None, "tools": result.call_id, "mcps": result.call_id}


async def test_a_destructive_candidate_is_not_called_where_a_read_only_one_can_do_the_job():
    recorder = CallRecorder()
    reading = recorder.search("find", ValueError("broken"), read_only=True)
    wiping = recorder.search("find", "wiped", source="mcps", read_only=False, destructive=True)
    async with engine_with(reading, wiping) as engine:
        failed = await ToolHub(engine).execute("find", {"query": "x"})
        told = await ToolHub(engine, config=HubConfig(destructive_fallback=True)).execute("find", {"query": "x"})
    assert not failed.is_success and "a read-only tool can do the job" in str(failed.metadata["skipped"])
    assert told.text == "wiped"


def payment_of(source: str, paid: list[str], *, fails: bool = False) -> Tool:
    async def transfer(amount: float) -> str:
        """Transfer money."""
        paid.append(f"{source} {amount:g}")
        if fails:
            raise ValueError("The bank is closed.")
        return f"{source} {amount:g}"

    return make_tool(transfer, name="transfer", source=source)


@pytest.mark.parametrize(
    ("edited", "expected"),
    [({"amount": 7}, ["tools 7"]), ({"amount": "much"}, []), (None, ["tools 100"])],
)
async def test_no_other_tool_gets_the_arguments_that_a_person_has_changed(edited, expected):
    paid: list[str] = []

    class AskAboutFirst:
        def decide(self, principal, tool, capability, arguments, /):
            return Decision(verdict="ask" if tool.source == "tools" else "allow", reason="Money.")

    async with UnifiedToolLibrary(policy=AskAboutFirst()) as library:
        library.register(payment_of("tools", paid, fails=True))
        asked = await library.execute_tool("transfer", None, {"amount": 100})
        approval_id = asked.metadata["approval_id"]
        await library.engine.approvals.record_decision(approval_id, Approval(allowed=True, arguments=edited))
        library.register(payment_of("mcps", paid))  # allowed, with any arguments
        context = ToolExecutionContext(approval_id=approval_id)
        result = await library.execute_tool("transfer", None, {"amount": 100}, context=context)
    if edited is None:  # the other call is allowed as it is
        assert result.is_success and paid == [*expected, "mcps 100"]
    else:
        assert not result.is_success and paid == expected
        assert "a person has changed" in result.metadata["skipped"][0]["reason"]
