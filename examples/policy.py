"""Rules decide about every call: the first rule that matches. What is denied is not shown to the model."""

import asyncio

from ferrule import Policy, Principal, Rule, ToolExecutionContext, UnifiedToolLibrary, tool


@tool(destructive=True)
async def pay(amount: float, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount:g} to {to}"


POLICY = Policy(
    rules=[
        Rule(verdict="deny", tool="pay", arguments={"amount": {"more_than": 1000}}, reason="No more than 1000."),
        Rule(verdict="allow", tool="pay", arguments={"to": ["Ann", "Bob"], "amount": {"less_than": 10}}),
        Rule(verdict="ask", effect="changing", principal="agent"),
    ]
)


async def main() -> None:
    agent = ToolExecutionContext(principal=Principal(kind="agent", name="demo"))
    async with UnifiedToolLibrary(policy=POLICY) as library:
        library.register(pay)
        for amount, to in ((5, "Ann"), (50, "Ann"), (5000, "Ann")):
            result = await library.execute("pay", {"amount": amount, "to": to}, agent)
            print(amount, result.text if result.is_success else result.error_type)


if __name__ == "__main__":
    asyncio.run(main())
