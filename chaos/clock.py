"""The clock jumps by hours and days, forwards and backwards, between calls, during them, and between restarts.

`time.time` is replaced before Ferrule is imported, so this module imports Ferrule inside its functions.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from chaos.scenario import Load, Outcome

HOUR, DAY = 3600.0, 86_400.0
JUMPS = (-DAY, -3 * HOUR, -60.0, 60.0, 3 * HOUR, DAY)


@dataclass(slots=True)
class _Clock:
    """The clock of this process, which can be set."""

    offset: float = 0.0
    jumps: int = 0

    def jump(self, seconds: float) -> None:
        self.offset += seconds
        self.jumps += 1

    def replace_system_clock(self) -> None:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self.offset
        time.time_ns = lambda: real_ns() + int(self.offset * 1e9)


@dataclass(slots=True)
class _Seen:
    """What was acknowledged so far, in all restarts."""

    calls: set[str] = field(default_factory=set)
    entries: dict[str, int] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    approvals: int = 0
    timeouts: int = 0


def jump(load: Load) -> Outcome:
    clock = _Clock()
    clock.replace_system_clock()
    outcome, chance, seen = Outcome(), random.Random(load.seed), _Seen()
    deadline, restarts = time.monotonic() + load.seconds, 0
    while time.monotonic() < deadline or restarts < 2:
        clock.jump(chance.choice(JUMPS))
        asyncio.run(_live_through_jumps(load, clock, chance, seen, outcome))
        restarts += 1
    asyncio.run(_check_retention(load, clock, outcome))
    outcome.figures |= {"restarts": restarts, "jumps": clock.jumps, "calls": len(seen.calls), "runs": len(seen.runs)}
    outcome.figures |= {"approvals": seen.approvals, "timeouts": seen.timeouts}
    return outcome


async def _live_through_jumps(load: Load, clock: _Clock, chance: random.Random, seen: _Seen, outcome: Outcome) -> None:
    from ferrule import Principal, ToolEngineConfig, ToolExecutionContext, UnifiedToolLibrary, tool

    config = ToolEngineConfig(tools_directory="no-such-folder", builtin_tools=False, auto_reload=False)
    agent = Principal(kind="agent", name="clock")

    @tool
    async def wait(seconds: float) -> str:
        """Wait while the clock jumps."""
        clock.jump(chance.choice(JUMPS))
        await asyncio.sleep(seconds)
        return "done"

    @tool(destructive=True)
    async def pay(order: int) -> str:
        """Pay for an order."""
        return "paid"

    async with UnifiedToolLibrary(config, store=f"sqlite:///{load.folder}/calls.db") as library:
        library.register(wait, pay)
        for _ in range(10):
            result = await library.execute_tool("wait", None, {"seconds": 0})
            outcome.check(result.is_success and 0 <= result.execution_time < 60, f"a call failed or took {result}")
            seen.calls.add(result.call_id)
        await _check_timeouts(library, seen, outcome)
        await _check_approvals(library, clock, chance, seen, outcome, ToolExecutionContext(principal=agent))
        await _check_entries(library.engine.store, clock, chance, seen, outcome)
        await _check_runs(library, clock, chance, seen, outcome)
        records = [record.record_id for record in await _read_pages(library.engine.store)]
        outcome.check(len(records) == len(set(records)), "a record is on two pages")
        outcome.check_none(seen.calls - set(records), "calls have no record")


async def _check_timeouts(library: Any, seen: _Seen, outcome: Outcome) -> None:
    long = await library.execute("wait", {"seconds": 0.05}, timeout=60)
    outcome.check(long.is_success, f"a jump ended a call before its timeout: {long.error}")
    short = await asyncio.wait_for(library.execute("wait", {"seconds": 300}, timeout=0.1), 120)
    outcome.check(short.error_type == "timeout", f"a call has no timeout: {short}")
    seen.calls |= {long.call_id, short.call_id}
    seen.timeouts += 1


async def _check_approvals(
    library: Any, clock: _Clock, chance: random.Random, seen: _Seen, outcome: Outcome, context: Any
) -> None:
    from dataclasses import replace

    async def pay(approval_id: str | None = None) -> Any:
        order = {"order": len(seen.calls)}
        return await library.execute_tool("pay", None, order, context=replace(context, approval_id=approval_id))

    approval_id = (await pay()).metadata["approval_id"]
    await library.engine.approvals.record_decision(approval_id, True)
    if chance.random() < 0.5:
        clock.jump(8 * DAY)
        late = await pay(approval_id)
        outcome.check(late.error_type == "approval_required", f"an approval was used after its expiry: {late}")
    else:
        clock.jump(chance.choice(JUMPS))
        first = await pay(approval_id)
        outcome.check(first.is_success, f"an approval did not survive a jump: {first.error}")
        clock.jump(-DAY)
        second = await pay(approval_id)
        outcome.check(not second.is_success, "an approval was used twice")
        seen.calls.add(first.call_id)
    seen.approvals += 1


async def _check_entries(store: Any, clock: _Clock, chance: random.Random, seen: _Seen, outcome: Outcome) -> None:
    for number in range(5):
        key = f"{chance.randrange(10)}"
        store.write_entry("values", key, {"number": number + 100 * clock.jumps})
        seen.entries[key] = number + 100 * clock.jumps
        clock.jump(chance.choice(JUMPS))
        stored = {key: value["number"] for key, value in (await store.read_entries("values")).items()}
        if stored != seen.entries:
            outcome.failures.append(f"entries are lost: {stored} instead of {seen.entries}")
            seen.entries = stored


async def _check_runs(library: Any, clock: _Clock, chance: random.Random, seen: _Seen, outcome: Outcome) -> None:
    """A run waits for approval, the clock jumps, and the run goes on with the order of its entries."""
    from ferrule.agent import Agent
    from ferrule.testing import ScriptedModel

    call = {"name": "pay", "arguments": {"order": 1_000_000 + clock.jumps}}
    waiting = await Agent(library, ScriptedModel([call])).run("Pay")
    clock.jump(chance.choice(JUMPS))
    answer = await Agent(library, ScriptedModel(["paid"])).resume(waiting.run_id, approvals=True)
    roles = [message["role"] for message in answer.messages]
    outcome.check(answer.is_finished, f"a run does not go on: {answer.reason}")
    outcome.check(roles == ["system", "user", "assistant", "tool", "assistant"], f"a run has the order {roles}")
    seen.runs.append(waiting.run_id)


async def _read_pages(store: Any) -> list[Any]:
    records: list[Any] = []
    while page := await store.query_call_records(limit=7, after=records[-1] if records else None):
        records += page
    return records


async def _check_retention(load: Load, clock: _Clock, outcome: Outcome) -> None:
    """Retention follows the clock: a jump by less than the maximum age deletes nothing, whatever the direction."""
    from ferrule.store import Retention, ToolCallRecord, ToolKnowledgeStore

    url, retention = f"sqlite:///{load.folder}/retention.db", Retention(max_age=timedelta(days=2))
    for jump, expected in ((0, 1), (-DAY, 2), (DAY, 3), (0.9 * DAY, 4), (4 * DAY, 1)):
        clock.jump(jump)
        async with ToolKnowledgeStore(url, retention=retention) as store:
            record = ToolCallRecord(record_id=store.new_record_id(), tool_name="note", status="success")
            store.record_finished(record)
            await store.flush()
            number = len(await store.query_call_records())
        outcome.check(number == expected, f"after a jump by {jump:.0f} s there are {number} records, not {expected}")
