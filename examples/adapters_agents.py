"""One library in three frameworks: a blocking tool that they could not stop is killed, and all calls are recorded.

No API key is needed: the tool is called in the same way as by the agents of these frameworks.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from agents.tool_context import ToolContext
from langchain_core.tools import tool
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from ferrule import UnifiedToolLibrary
from ferrule.adapters.langchain import as_langchain_tools
from ferrule.adapters.openai_agents import as_function_tools
from ferrule.adapters.pydantic_ai import FerruleToolset
from ferrule.kinds.function.tools import tool_of

LATE_FILE = Path(tempfile.mkdtemp()) / "late.txt"


@tool
def write_late() -> str:
    """Wait for two seconds, then write a file."""
    time.sleep(2)
    LATE_FILE.write_text("too late")
    return "written"


async def main() -> None:
    async with UnifiedToolLibrary() as library:
        library.register(tool_of(write_late, timeout=1))

        print("LangChain:    ", await as_langchain_tools(library, tools=["write_late"])[0].ainvoke({}))

        agent = Agent(TestModel(), toolsets=[FerruleToolset(library, tools=["write_late"])])
        print("pydantic-ai:  ", (await agent.run("Write.")).output)

        [function_tool] = as_function_tools(library, tools=["write_late"])
        context = ToolContext(None, tool_name="write_late", tool_call_id="1", tool_arguments="{}")
        print("OpenAI Agents:", await function_tool.on_invoke_tool(context, "{}"))

        await asyncio.sleep(2)
        print("The file is", "there!" if LATE_FILE.exists() else "not there: the tool was killed on its timeout.")
        for record in await library.engine.query_call_records():
            print(f"recorded: {record.tool_name} for {record.caller_id}: {record.status}, {record.error_type}")


if __name__ == "__main__":
    asyncio.run(main())
