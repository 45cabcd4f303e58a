"""A tour of Ferrule's features in one minute; part of `make run`."""

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
    """Sleep for a second, then write a file. The timeout of the tool is shorter."""
    time.sleep(1)
    Path(path).write_text("too late")
    return "written"


@tool
async def count(to: int):
    """Count, slowly."""
    for n in range(1, to + 1):
        await asyncio.sleep(0.05)
        yield n


executed_selectors: list[str] = []


@tool(read_only=True)
async def extract(selector: str) -> str:
    """Read an element of a page. Always fails, so that the failure memory can be shown."""
    executed_selectors.append(selector)
    raise ValueError(f"No element matches {selector!r}. On the page: a.stars (link, '28.4k stars')")


GREET_YAML = """\
name: greet
version: "1.0.0"
description: Greet a person
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
    tools_folder, late_file = folder / "tools", folder / "late.txt"
    config = ToolEngineConfig(tools_directory=str(tools_folder), watch_for_changes=True)
    store = f"sqlite:///{folder / 'calls.db'}"
    async with ToolEngine(config, store=store, concurrency=ConcurrencyConfig(max_concurrent=20)) as engine:
        engine.register(add, write_late, count)

        title("A function is a tool; a number passed as text is converted")
        print("  add(a=1, b='2') →", (await engine.execute("add", {"a": 1, "b": "2"})).output)

        title("An invalid call gets a list of all its errors and suggestions")
        print(" ", (await engine.execute("add", {"aa": 1, "b": "two"})).error)
        print(" ", (await engine.execute("calculater", {"expression": "1+1"})).error)

        title("Bundled tools have limits")
        for expression in ("0.1 + 0.2", "2**100", "9**9**9"):
            print(f"  {expression} →", (await engine.execute("calculator", {"expression": expression})).text)

        title("A timeout kills: a function that would write a file later never writes it")
        print(" ", (await engine.execute("write_late", {"path": str(late_file)})).error)
        await asyncio.sleep(1)
        print("  a second later the file is", "there!" if late_file.exists() else "not there")

        title("A new YAML file in the tools folder is loaded automatically")
        tools_folder.mkdir()
        (tools_folder / "greet.yaml").write_text(GREET_YAML)
        started = time.perf_counter()
        while "greet" not in engine.registry:
            await asyncio.sleep(0.01)
        print(
            f"  loaded after {time.perf_counter() - started:.2f} s:",
            (await engine.execute("greet", {"name": "世界"})).text,
        )

        title("Progress of a running call")
        async for item in engine.stream("count", {"to": 5}):
            print(" ", item.data if isinstance(item, Progress) else item.output)

        title("A thousand calls, at most twenty concurrently, all recorded")
        started = time.perf_counter()
        await engine.execute_batch([("add", {"a": n, "b": n}) for n in range(1000)])
        print(f"  {time.perf_counter() - started:.3f} s")

        title("A sub-agent with its own permissions and statistics")
        agent = ToolSubAgent("guide", engine, tools={"echo", "add"})
        await agent.execute_batch([("echo", {"message": "hello"}), ("write_late", {"path": "x"})])
        print(" ", agent.get_brief_summary())

        title("Never twice: a model insists on a call that fails, and is stopped")
        model = ScriptedModel([{"name": "extract", "arguments": {"selector": "a.social-count"}}], loop=True)
        engine.register(extract)
        answer = await Agent(UnifiedToolLibrary(engine=engine), model, limits=RunLimits(turns=15)).run(
            "How many stars?"
        )
        executions = executed_selectors.count("a.social-count")
        print(f"  {len(answer.steps)} requests, {executions} execution; the last result that the model got:")
        print(" ", answer.steps[-1].text)

        title("Call statistics")
        statistics = await engine.get_call_statistics()
        print(f"  {statistics.total} calls, {statistics.success_rate} % successful")
        for name, summary in statistics.tools.items():
            p95 = f"{summary.p95 * 1000:.2f} ms" if summary.p95 is not None else "unknown: it never ran"
            print(f"  {name:<12} {summary.calls:>5} calls, {summary.failures} failed, p95 {p95}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
