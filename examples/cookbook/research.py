"""A research agent with redundant searches: three sources for one job, of which one is down.

The sources have the same name, `search`, and come from different places: here they stand for a search of your own, one
of a skill and one of an MCP server. The agent calls `search` once; the hub asks all of them and combines what they
find. The script stands for a real model.
"""

import asyncio
from dataclasses import replace

from ferrule import Agent, HubConfig, RunLimits, UnifiedToolLibrary, tool
from ferrule.kinds.function.tools import tool_of
from ferrule.testing import ScriptedModel

ENCYCLOPEDIA = {"tea": "Tea is made from the leaves of Camellia sinensis."}
NEWS = {"tea": "Tea became five percent more expensive this year."}


@tool(name="search", read_only=True, tags=["search"], timeout=5)
async def search_encyclopedia(query: str) -> str:
    """Search for a topic.

    Args:
        query: one or two words
    """
    return ENCYCLOPEDIA[query.lower()]


@tool(name="search", read_only=True, tags=["search"], timeout=5)
async def search_news(query: str) -> str:
    """Search the news for a topic."""
    return NEWS[query.lower()]


@tool(name="search", read_only=True, tags=["search"], timeout=5)
async def search_archive(query: str) -> str:
    """Search the archive for a topic."""
    raise RuntimeError("the archive is being moved")


async def main() -> None:
    model = ScriptedModel(
        [
            {"name": "search", "arguments": {"query": "tea"}},
            "Tea comes from Camellia sinensis, and costs five percent more than last year.",
        ]
    )
    async with UnifiedToolLibrary(hub=HubConfig(use_model=False)) as library:
        library.register(
            search_encyclopedia,
            replace(tool_of(search_news), source="skills"),
            replace(tool_of(search_archive), source="mcps"),
        )
        agent = Agent(library, model, tools=["search"], limits=RunLimits(turns=8, seconds=120))
        answer = await agent.run("Write a note on tea, with two sources.")
        print("found:\n" + answer.steps[0].text)
        print("\nanswer:\n" + answer.text)
        for call in await library.engine.store.query_call_records(limit=5):
            print("record:", call.tool_name, call.status)


if __name__ == "__main__":
    asyncio.run(main())
