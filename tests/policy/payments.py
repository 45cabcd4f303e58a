"""Tools that need approval, and what they did."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ferrule import (
    Approval,
    NeedsApproval,
    Policy,
    Rule,
    ToolExecutionContext,
    ToolExecutionResult,
    UnifiedToolLibrary,
    tool,
)

ASK = Policy(rules=[Rule(verdict="ask", tool="pay", reason="Money.")])


class Payments:
    """A library with a tool that pays, and what it paid."""

    def __init__(self, library: UnifiedToolLibrary) -> None:
        self.library, self.paid = library, list[float]()
        self.approvals = library.engine.approvals
        self.register()

    def register(self, factor: int = 1) -> None:
        @tool(name="pay", idempotent=True)
        async def pay(amount: float, to: str = "Ann") -> str:
            """Pay somebody."""
            self.paid.append(amount * factor)
            return f"paid {amount * factor:g} to {to}"

        @tool(name="pay", idempotent=True)
        async def overpay(amount: float, to: str = "Ann") -> str:
            """Pay somebody."""
            self.paid.append(amount * 100)
            return f"paid {amount * 100:g} to {to}"

        self.library.register(pay if factor == 1 else overpay)

    async def pay(self, amount: float = 5, *, approval_id: str | None = None, **context: Any) -> ToolExecutionResult:
        made = ToolExecutionContext(approval_id=approval_id, **context)
        return await self.library.execute_tool("pay", None, {"amount": amount}, context=made)

    async def approve(self, result: ToolExecutionResult, decision: Approval | bool = True) -> str:
        assert result.error_type == "approval_required", result
        approval_id: str = result.metadata["approval_id"]
        await self.approvals.record_decision(approval_id, decision, by="Eve")
        return approval_id


@asynccontextmanager
async def payments(url: str | None = None, policy: Policy = ASK) -> AsyncIterator[Payments]:
    async with UnifiedToolLibrary(store=url, policy=policy) as library:
        yield Payments(library)


class Salaries:
    """A library with a tool that asks for approval itself, and what it was called with."""

    def __init__(self, library: UnifiedToolLibrary) -> None:
        self.library, self.shown = library, list[str]()

        @tool(name="salary", read_only=True, cacheable=True)
        async def salary(person: str, context: ToolExecutionContext) -> str:
            """Show a salary."""
            if not context.is_approved:
                raise NeedsApproval("Private.")
            self.shown.append(person)
            return f"salary of {person}"

        @tool(name="report", read_only=True, cacheable=True)
        async def report(context: ToolExecutionContext) -> str:
            """Report a salary."""
            result = await context.call_tool("salary", {"person": "Ann"})
            return result.text if result.is_success else "nothing yet"

        library.register(salary, report)

    async def call(self, person: str, **context: Any) -> ToolExecutionResult:
        made = ToolExecutionContext(**context)
        return await self.library.execute_tool("salary", None, {"person": person}, context=made)

    async def approve(self, result: ToolExecutionResult, **arguments: Any) -> str:
        assert result.error_type == "approval_required", result
        approval_id: str = result.metadata["approval_id"]
        await self.library.engine.approvals.record_decision(
            approval_id, Approval(allowed=True, arguments=arguments or None)
        )
        return approval_id
