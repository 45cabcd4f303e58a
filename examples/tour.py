"""What Ferrule does, seen in a minute: `make run` runs this."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from ferrule import (
    Agent,
    ConcurrencyConfig,
    Progress,
    RunLimits,
    ToolEngine,
    ToolEngineConfig,
    ToolSubAgent,
    UnifiedToolLibrary,
    tool,
)
from ferrule.testing import ScriptedModel


@tool(tags=["math"], read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=0.5)
def write_late(path: str) -> str:
    """Sleep for a second, then write a file: too slow for its own time-out."""
    time.sleep(1)
    Path(path).write_text("too late")
    return "written"


@tool
async def count(to: int):
    """Count, slowly."""
    for n in range(1, to + 1):
        await asyncio.sleep(0.05)
        yield n


TRIED: list[str] = []


@tool(read_only=True)
async def extract(selector: str) -> str:
    """Read an element of a page."""
    TRIED.append(selector)
    raise ValueError(f"No element matches {selector!r}. On the page: a.stars (link, '28.4k stars')")


GREETING = """\
name: greet
version: "1.0.0"
description: Greet somebody
category: custom
parameters:
  - name: name
    type: string
    required: true
entry:
  type: external
  command: [echo, "Hello, {name}!"]
"""


def title(text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}")


async def main(folder: Path) -> None:
    tools, late = folder / "tools", folder / "late.txt"
    config = ToolEngineConfig(tools_directory=str(tools), watch_for_changes=True)
    store = f"sqlite:///{folder / 'calls.db'}"
    async with ToolEngine(config, store=store, concurrency=ConcurrencyConfig(max_concurrent=20)) as engine:
        engine.register(add, write_late, count)

        title("A function is a tool; text that can only be a number is one")
        print("  add(a=1, b='2') →", (await engine.execute("add", {"a": 1, "b": "2"})).output)

        title("Wrong calls are told all that is wrong, and what would be right")
        print(" ", (await engine.execute("add", {"aa": 1, "b": "two"})).error)
        print(" ", (await engine.execute("calculater", {"expression": "1+1"})).error)

        title("Tools that come in the box, and never hang")
        for expression in ("0.1 + 0.2", "2**100", "9**9**9"):
            print(f"  {expression} →", (await engine.execute("calculator", {"expression": expression})).text)

        title("A time-out kills: a function that writes a file after its time never writes it")
        print(" ", (await engine.execute("write_late", {"path": str(late)})).error)
        await asyncio.sleep(1)
        print("  a second later the file is", "there!" if late.exists() else "not there")

        title("Save a file and its tool is there")
        tools.mkdir()
        (tools / "greet.yaml").write_text(GREETING)
        started = time.perf_counter()
        while "greet" not in engine.registry:
            await asyncio.sleep(0.01)
        print(
            f"  seen after {time.perf_counter() - started:.2f} s:",
            (await engine.execute("greet", {"name": "世界"})).text,
        )

        title("Progress as it comes")
        async for item in engine.stream("count", {"to": 5}):
            print(" ", item.data if isinstance(item, Progress) else item.output)

        title("A thousand calls, twenty at a time, each with its record")
        started = time.perf_counter()
        await engine.execute_batch([("add", {"a": n, "b": n}) for n in range(1000)])
        print(f"  {time.perf_counter() - started:.3f} s")

        title("An agent's own view of its calls")
        agent = ToolSubAgent("guide", engine, tools={"echo", "add"})
        await agent.execute_batch([("echo", {"message": "hello"}), ("write_late", {"path": "x"})])
        print(" ", agent.get_brief_summary())

        title("Never twice: a stubborn model asks for the same failing call fifteen times")
        stubborn = ScriptedModel([{"name": "extract", "arguments": {"selector": "a.social-count"}}], loop=True)
        engine.register(extract)
        answer = await Agent(UnifiedToolLibrary(engine=engine), stubborn, limits=RunLimits(turns=15)).run(
            "How many stars?"
        )
        print(f"  {len(answer.steps)} times asked for, {TRIED.count('a.social-count')} time made; the model was told:")
        print(" ", answer.steps[-1].text)

        title("What was called, how it went, how long it took")
        statistics = await engine.get_call_statistics()
        print(f"  {statistics.total} calls, {statistics.success_rate} % successful")
        for name, one in statistics.tools.items():
            p95 = f"{one.p95 * 1000:.2f} ms" if one.p95 is not None else "never ran"
            print(f"  {name:<12} {one.calls:>5} calls, {one.failures} failed, p95 {p95}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
