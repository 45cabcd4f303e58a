"""Two tools for one job: when your own one fails, the other one answers, and the caller need not know."""

import asyncio
from dataclasses import replace

from ferrule import UnifiedToolLibrary, tool
from ferrule.kinds.function.tools import tool_of


@tool(name="rate", read_only=True, metadata={"strategy": "best"})
async def rate_from_bank(currency: str) -> float:
    """Tell the price of a euro in another currency."""
    raise RuntimeError("the bank is closed today")


@tool(name="rate", read_only=True, metadata={"strategy": "best"})
async def rate_from_file(currency: str) -> float:
    """Tell yesterday's price of a euro in another currency."""
    return {"USD": 1.09, "CNY": 7.82}[currency]


async def main() -> None:
    async with UnifiedToolLibrary() as library:
        library.register(rate_from_bank, replace(tool_of(rate_from_file), source="skills"))  # tools before skills
        result = await library.execute("rate", {"currency": "CNY"})
        print(result.output)
        for call in await library.engine.store.query_call_records(limit=5):
            print(call.tool_name, call.status, call.error or "")


if __name__ == "__main__":
    asyncio.run(main())
