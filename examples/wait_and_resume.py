"""A run waits for a person without using memory, and is continued later, by another agent object or process."""

import asyncio
import tempfile
from pathlib import Path

from ferrule import Agent, UnifiedToolLibrary, tool


@tool(destructive=True)
async def close_account(customer: str) -> str:
    """Close the account of a customer."""
    return f"The account of {customer} is closed."


async def ask(store: str) -> str:
    async with UnifiedToolLibrary(store=store) as library:
        library.register(close_account)
        paused = await Agent(library, "offline").run("close account of customer Ann")
        print(paused.state, paused.approvals[0].arguments)
        return paused.run_id


async def decide(store: str, run_id: str) -> None:
    async with UnifiedToolLibrary(store=store) as library:
        library.register(close_account)
        answer = await Agent(library, "offline").resume(run_id, approvals=True)
        print(answer.state, answer.text)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{Path(folder) / 'runs.db'}"
        await decide(store, await ask(store))


if __name__ == "__main__":
    asyncio.run(main())
