"""A process that makes calls and decisions: `python -m tests.policy.calling_process`.

It reads commands as lines of JSON and answers each with one line. Processes that open the same store share approvals.
"""

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ferrule import Approval, Policy, Principal, Rule, SetupError, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.kinds.function.tools import tool_of

TOOLS = ("look", "change", "wipe", "send")
POLICIES = {
    "default": Policy(),
    "strict": Policy(
        rules=[Rule(verdict="deny", tool="wipe", principal="agent"), Rule(verdict="ask", effect="changing")]
    ),
    "by argument": Policy(
        rules=[
            Rule(verdict="deny", arguments={"n": {"more_than": 2}}),
            *(Rule(verdict="ask", tool=name, arguments={"n": 1}) for name in ("change", "send")),
            *(Rule(verdict="allow", tool=name) for name in ("look", "change", "send")),
        ],
        default="deny",
    ),
}
PRINCIPALS = {
    "user": Principal(),
    "agent": Principal(kind="agent", name="a"),
    "acme": Principal(kind="agent", name="a", tenant="acme"),
    "narrow": Principal(kind="agent", name="n", tools=frozenset({"look", "change"})),
    "reader": Principal(kind="token", name="r", max_effect="read_only"),
}


def make_tools(effects: Path) -> list[Any]:
    def note(name: str, n: int) -> str:
        with effects.open("a") as file:
            file.write(f"{name} {n}\n")
        return f"{name} {n}"

    @tool(read_only=True)
    async def look(n: int) -> str:
        """Look."""
        return note("look", n)

    @tool
    async def change(n: int) -> str:
        """Change something."""
        return note("change", n)

    @tool(destructive=True)
    async def wipe(n: int) -> str:
        """Wipe something."""
        return note("wipe", n)

    @tool(name="send", destructive=True)
    async def send_away(n: int) -> str:
        """Send something."""
        return note("send/tools", n)

    @tool(name="send")
    async def send_copy(n: int) -> str:
        """Send something."""
        return note("send/mcps", n)

    candidates = {"tools": send_away, "mcps": send_copy}
    return [look, change, wipe, *(replace(tool_of(each), source=source) for source, each in candidates.items())]


class CallingProcess:
    """What the process does for each command."""

    def __init__(self) -> None:
        self.library: UnifiedToolLibrary | None = None
        self.days = 0

    async def open(self, url: str, effects: str, policy: str, days: int) -> str:
        await self.close()
        self.days = days
        self.library = UnifiedToolLibrary(store=url, policy=POLICIES[policy])
        await self.library.initialize()
        self.library.register(*make_tools(Path(effects)))
        self.library.engine.approvals._clock = lambda: time.time() + self.days * 86_400
        return "open"

    async def wait(self, days: int) -> str:
        self.days += days
        return "waited"

    async def close(self) -> None:
        if self.library is not None:
            await self.library.aclose()
            self.library = None

    async def call(self, tool: str, n: int, principal: str, run: str, approval_id: str | None) -> dict[str, Any]:
        assert self.library is not None
        context = ToolExecutionContext(
            principal=PRINCIPALS[principal], conversation_id=run or None, approval_id=approval_id
        )
        result = await self.library.execute_tool(tool, None, {"n": n}, context=context)
        return {
            "outcome": "done" if result.is_success else result.error_type,
            "text": result.text,
            "approval_id": result.metadata.get("approval_id"),
        }

    async def decide(self, approval_id: str, allowed: bool, n: int | None) -> str:
        """`n` is what the person wants the call to be made with instead."""
        assert self.library is not None
        approval = Approval(allowed=allowed, arguments=None if n is None else {"n": n})
        try:
            return (await self.library.engine.approvals.record_decision(approval_id, approval)).state
        except SetupError:
            return "too late"

    async def find_candidate(self, approval_id: str) -> str:
        """Which candidate of `send` a request is about."""
        assert self.library is not None
        fingerprint = (await self.library.engine.approvals.get(approval_id)).fingerprint
        [candidate] = [t for t in self.library.engine.registry.candidates("send") if t.fingerprint == fingerprint]
        return f"send/{candidate.source}"

    async def requests(self, tenant: str) -> list[str]:
        assert self.library is not None
        listed = await self.library.engine.approvals.list_requests(tenant=tenant, limit=1_000)
        return sorted(request.approval_id for request in listed)

    async def list(self, principal: str) -> list[str]:
        assert self.library is not None
        specs = await self.library.get_all_tools(principal=PRINCIPALS[principal])
        return sorted({spec.tool_id for spec in specs if spec.tool_id in TOOLS})


async def main() -> None:
    process = CallingProcess()
    print('"ready"', flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = json.loads(line)
        print(json.dumps(await getattr(process, name)(**arguments)), flush=True)
    await process.close()


if __name__ == "__main__":
    asyncio.run(main())
