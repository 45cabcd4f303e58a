"""What an agent does, while it does it: turns, calls, progress of a tool, and the text of the answer."""

import asyncio

from ferrule import Agent, UnifiedToolLibrary, report_progress, tool
from ferrule.agent.answer import CallEnded, CallProgress, CallStarted, TextPiece
from ferrule.testing import ScriptedModel


@tool(read_only=True)
async def build_report(pages: int) -> str:
    """Build a report."""
    for page in range(pages):
        report_progress((page + 1) / pages, f"page {page + 1}")
    return f"a report of {pages} pages"


async def main() -> None:
    model = ScriptedModel([{"name": "build_report", "arguments": {"pages": 2}}, "The report has 2 pages."])
    async with UnifiedToolLibrary() as library:
        library.register(build_report)
        async for event in Agent(library, model).stream("Build a report of 2 pages"):
            match event:
                case CallStarted(call=call):
                    print("call", call.name, call.arguments)
                case CallProgress(progress=progress):
                    print("progress", progress.message)
                case CallEnded(step=step):
                    print("result", step.text)
                case TextPiece(text=text):
                    print("text", text)


if __name__ == "__main__":
    asyncio.run(main())
