"""Ten questions answered without a model or an API key; part of `make run`."""

import asyncio
import logging
import tempfile
from pathlib import Path

from ferrule import Orchestrator, UnifiedToolLibrary
from ferrule_tools.files import workspace_tools

QUESTIONS = [
    "hello",
    "what is 15% of 80?",
    "计算 12 * (3 + 4)",
    "what time is it in Tokyo?",
    "东京现在几点？",
    "how many days until 2030-12-25?",
    'search files for "invoice"',
    "compute 2**10 and then multiply the result by 3",
    "what is 6*7 and what time is it in Paris?",
    "what did I ask?",
]


async def main(folder: Path) -> None:
    (folder / "letters").mkdir()
    (folder / "letters/may.txt").write_text("Dear Ann,\nthe invoice is in the drawer.\n")
    (folder / "notes.txt").write_text("buy tea\n")
    async with UnifiedToolLibrary(store=f"sqlite:///{folder / 'calls.db'}") as library:
        library.register(*workspace_tools(folder))
        async with Orchestrator(library, "offline", workflow="simple") as orchestrator:
            for question in QUESTIONS:
                result = await orchestrator.process_task(question)
                print(f"\n> {question}\n{result.answer}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
