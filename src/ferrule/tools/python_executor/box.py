"""`python_executor`: runs Python scripts, in a sandbox or, where that is configured, in a full Python."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Annotated, Any, Final

from ferrule.call import ToolExecutionContext
from ferrule.content import Output
from ferrule.engine import ToolEngine
from ferrule.sources.function import tool_of
from ferrule.spec import Tool, ToolCategory
from ferrule.tools.python_executor.calls import ScriptCalls
from ferrule.tools.python_executor.config import PythonExecutorConfig
from ferrule.tools.python_executor.full import run_in_full_python
from ferrule.tools.python_executor.hints import MODULES, hint_for
from ferrule.tools.python_executor.isolation import Isolation, find_isolation
from ferrule.tools.python_executor.reach import NAME, Reach
from ferrule.tools.python_executor.sandbox import run_in_sandbox
from ferrule.tools.python_executor.script import Script
from ferrule.tools.python_executor.settling import settle

_TAGS: Final = ["python", "code", "script", "compute", "execute", "代码", "脚本", "运行"]
_EXAMPLES: Final[list[dict[str, Any]]] = [
    {"code": "sum(n * n for n in range(1, 101))"},
    {"code": "[o['id'] for o in orders if o['total'] > 100]", "inputs": {"orders": [{"id": 7, "total": 120}]}},
]
_OUTPUT: Final = {
    "type": "object",
    "properties": {
        "result": {"description": "the value of the last expression"},
        "printed": {"type": "string", "description": "what the script printed"},
    },
    "required": ["result"],
}
_ENDING: Final = 30.0
"""Seconds beside those of the script, to start its Python and to end it."""

Code = Annotated[str, "the script; print() what shall be read, and write what shall be the result as the last line"]
Inputs = Annotated[dict[str, Any] | None, "values that the script finds as variables of these names"]


def python_executor_tools(
    config: PythonExecutorConfig | None = None, *, engine: ToolEngine | None = None
) -> list[Tool]:
    """`python_executor`, whose scripts call the tools of `engine`; without one they can call none."""
    config = config or PythonExecutorConfig()
    return [_full(config) if config.full else _sandboxed(config, engine)]


def _sandboxed(config: PythonExecutorConfig, engine: ToolEngine | None) -> Tool:
    async def python_executor(code: Code, context: ToolExecutionContext, inputs: Inputs = None) -> Output:
        script = Script(code=code, inputs=inputs or {})
        reach = Reach(None if engine is None else engine.registry, context, config.tools)
        calls = ScriptCalls(engine, context, reach, most=config.calls)
        ran = await run_in_sandbox(script, config, calls)
        message = "" if ran.failure is None else ran.failure.message
        return settle(
            ran,
            config,
            hint=hint_for(message),
            is_transient=any(message.endswith(said) for said in calls.transient),
            facts={"untrusted": True} if calls.is_untrusted else {},
        )

    # What its scripts call is the only thing by which it could change anything.
    changes_nothing = config.tools is None
    tool = tool_of(
        python_executor,
        name=NAME,
        description=_about_sandbox(config, calls_tools=engine is not None),
        category=ToolCategory.CODE_EXECUTION,
        tags=_TAGS,
        examples=_EXAMPLES,
        read_only=changes_nothing,
        idempotent=changes_nothing,
        timeout=config.timeout,
    )
    is_there = importlib.util.find_spec("pydantic_monty") is not None
    return _described(tool, needs="" if is_there else "the package pydantic-monty: pip install 'ferrule[code]'")


def _full(config: PythonExecutorConfig) -> Tool:
    found = find_isolation(config)

    async def python_executor(code: Code, inputs: Inputs = None) -> Output:
        script = Script(code=code, inputs=inputs or {})
        assert isinstance(found, Isolation), "a tool that needs something is not called"
        ran = await run_in_full_python(script, config, found)
        facts = {} if found.kind == "bubblewrap" else {"isolation": "limits"}
        return settle(ran, config, hint=_full_hint(ran.failure.message if ran.failure else "", config), facts=facts)

    has_walls = isinstance(found, Isolation) and found.kind == "bubblewrap"
    tool = tool_of(
        python_executor,
        name=NAME,
        description=_about_full(config, found),
        category=ToolCategory.CODE_EXECUTION,
        tags=_TAGS,
        examples=_EXAMPLES,
        read_only=has_walls,
        idempotent=has_walls,
        destructive=not has_walls,
        timeout=config.seconds + _ENDING,
    )
    return _described(tool, needs="" if isinstance(found, Isolation) else found)


def _described(tool: Tool, *, needs: str) -> Tool:
    (capability,) = tool.spec.capabilities
    return replace(tool, needs=needs, spec=replace(tool.spec, capabilities=[replace(capability, output=_OUTPUT)]))


def _about_sandbox(config: PythonExecutorConfig, *, calls_tools: bool) -> str:
    tools = (
        " Tools that only look can be called as functions of the same name: page = search_files(query='x'); "
        "several at once: import asyncio, then await asyncio.gather(a(…), b(…)). A failed call raises an exception."
    )
    if config.tools is not None:
        tools = tools.replace("Tools that only look", f"Tools ({', '.join(config.tools)})")
    return (
        "Run a Python script, to compute, to work on data, or to do in one step what would take many calls. Gives "
        "what it prints, and the value of its last expression. 运行 Python 脚本，返回打印内容和最后一个表达式的值。"
        f"{tools if calls_tools else ''} "
        "It runs in a sandbox: no files, no network, no packages, no class inheritance, no yield, no del; of the "
        f"standard library there are {', '.join(MODULES)}. Nothing is kept from one script to the next. "
        f"Limits: {config.seconds:g} s of computing, {config.memory // 1_000_000} MB."
    )


def _about_full(config: PythonExecutorConfig, found: Isolation | str) -> str:
    weakness = found.weakness if isinstance(found, Isolation) else ""
    walls = f" It runs without bubblewrap: {weakness}." if weakness else ""
    return (
        "Run a Python script, to compute or to work on data. Gives what it prints, and the value of its last "
        "expression. 运行 Python 脚本，返回打印内容和最后一个表达式的值。 "
        "It has an empty folder of its own, the packages that are installed, no network, and no tools to call."
        f"{walls} Nothing is kept from one script to the next. "
        f"Limits: {config.seconds:g} s, {config.memory // 1_000_000} MB, files of {config.files_mb} MB."
    )


def _full_hint(message: str, config: PythonExecutorConfig) -> str:
    if message.startswith("ModuleNotFoundError"):
        return "This package is not installed, and none can be installed: do without it."
    if "[Errno 27]" in message or "[Errno 28]" in message:
        return f"A script may write {config.files_mb} MB."
    if message.startswith(("PermissionError", "OSError: [Errno 30]")) or "gaierror" in message:
        return "There is no network, and only the script's own folder can be written to."
    return ""
