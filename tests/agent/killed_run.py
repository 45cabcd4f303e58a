"""A run in a process that is killed: in the model's place, before a call takes effect, or after it did."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.testing import ScriptedModel


def script() -> list[Any]:
    one, two, three, four = ({"name": "write", "arguments": {"n": n}} for n in range(1, 5))
    return [one, [two, three], four, "All four are written."]


def make_tools(effects: Path, moment: str = "") -> list[Any]:
    def note(what: str) -> None:
        with effects.open("a") as file:
            file.write(f"{what}\n")

    @tool
    async def write(n: int) -> str:
        """Write a number down."""
        die_at(moment, f"before:{n}")
        note(str(n))
        die_at(moment, f"after:{n}")
        if moment == f"wait:{n}":  # to be killed by others
            await asyncio.Event().wait()
        return f"wrote {n}"

    @tool
    async def broken(n: int) -> str:
        """Never works."""
        note("broken")
        raise RuntimeError("it is broken")

    return [write, broken]


def die_at(moment: str, here: str) -> None:
    if moment == here:
        os.kill(os.getpid(), signal.SIGKILL)


class MortalModel(ScriptedModel):
    def __init__(self, moment: str) -> None:
        super().__init__(script())
        self._moment = moment

    async def generate(self, request: Any, on_text: Any = None) -> Any:
        die_at(self._moment, f"model:{len(self.requests) + 1}")
        return await super().generate(request, on_text)


async def main(url: str, effects: str, moment: str) -> None:
    async with UnifiedToolLibrary(store=url) as library:
        library.register(*make_tools(Path(effects), moment))
        await Agent(library, MortalModel(moment)).run("Write four numbers")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
