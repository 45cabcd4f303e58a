"""`python_executor`: runs Python scripts, in a sandbox or, where configured, in a full Python."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Final

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import Output
from ferrule.core.spec import Tool, ToolCategory
from ferrule.engine import ToolEngine
from ferrule.kinds.function.tools import tool_of
from ferrule_tools._tool_setup import configure_tool
from ferrule_tools.python.bubblewrap import Bubblewrap, find_bubblewrap, run_in_full_python
from ferrule_tools.python.monty_backend import (
    MODULES,
    NAME,
    ScriptCalls,
    hint_for_sandbox_error,
    run_in_sandbox,
)
from ferrule_tools.python.script import PythonExecutorConfig, Script, tool_output

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
_START_AND_KILL_TIME: Final = 30.0
"""Seconds added to those of the script, to start its Python and to kill it."""

Code = Annotated[str, "the script; print() what should be shown, and end with the expression that is the result"]
Inputs = Annotated[dict[str, Any] | None, "values that the script gets as variables of these names"]


def python_executor_tools(
    config: PythonExecutorConfig | None = None, *, engine: ToolEngine | None = None
) -> list[Tool]:
    """Return `python_executor`, whose scripts call the tools of `engine`; without an engine they call no tools."""
    config = config or PythonExecutorConfig()
    return [_build_full_python_tool(config) if config.full else _build_sandbox_tool(config, engine)]


def _build_sandbox_tool(config: PythonExecutorConfig, engine: ToolEngine | None) -> Tool:
    async def python_executor(code: Code, context: ToolExecutionContext, inputs: Inputs = None) -> Output:
        script = Script(code=code, inputs=inputs or {})
        calls = ScriptCalls(engine, context, config)
        result = await run_in_sandbox(script, config, calls)
        message = "" if result.failure is None else result.failure.message
        return tool_output(
            result,
            config,
            hint=hint_for_sandbox_error(message),
            is_transient=any(message.endswith(error) for error in calls.transient_errors),
            details={"untrusted": True} if calls.is_untrusted else {},
        )

    return _build_tool(
        python_executor,
        description=_describe_sandbox(config, calls_tools=engine is not None),
        # A sandboxed script can change something only through the tools that it calls.
        read_only=config.tools is None,
        timeout=config.timeout,
        needs="" if find_spec("pydantic_monty") else "the package pydantic-monty: pip install 'ferrule[code]'",
    )


def _build_full_python_tool(config: PythonExecutorConfig) -> Tool:
    bubblewrap = find_bubblewrap(config)

    async def python_executor(code: Code, inputs: Inputs = None) -> Output:
        assert isinstance(bubblewrap, Bubblewrap), "the engine does not call a tool that needs something"
        result = await run_in_full_python(Script(code=code, inputs=inputs or {}), config, bubblewrap)
        return tool_output(
            result, config, hint=_full_python_hint(result.failure.message if result.failure else "", config)
        )

    return _build_tool(
        python_executor,
        description=(
            "Run a Python script, to compute or to work on data. Returns what it prints, and the value of its last "
            "expression. 运行 Python 脚本，返回打印内容和最后一个表达式的值。 "
            "It has an empty folder of its own, the installed packages, no network, and no tools to call. "
            "Nothing is kept from one script to the next. "
            f"Limits: {config.seconds:g} s, {config.memory // 1_000_000} MB, files of {config.files_mb} MB."
        ),
        read_only=True,
        timeout=config.seconds + _START_AND_KILL_TIME,
        needs=bubblewrap if isinstance(bubblewrap, str) else "",
    )


def _build_tool(function: Callable[..., Any], *, description: str, read_only: bool, timeout: float, needs: str) -> Tool:
    built = tool_of(
        function,
        name=NAME,
        description=description,
        category=ToolCategory.CODE_EXECUTION,
        tags=_TAGS,
        examples=_EXAMPLES,
        read_only=read_only,
        idempotent=read_only,
        timeout=timeout,
    )
    return configure_tool(built, needs=needs, output=_OUTPUT)


def _describe_sandbox(config: PythonExecutorConfig, *, calls_tools: bool) -> str:
    callable_tools = "Read-only tools" if config.tools is None else f"Tools ({', '.join(config.tools)})"
    tools = (
        f" {callable_tools} can be called as functions of the same name: page = search_files(query='x'); "
        "several concurrently: import asyncio, then await asyncio.gather(a(…), b(…)). A failed call raises."
    )
    return (
        "Run a Python script, to compute, to work on data, or to do in one step what would take many calls. Returns "
        "what it prints, and the value of its last expression. 运行 Python 脚本，返回打印内容和最后一个表达式的值。"
        f"{tools if calls_tools else ''} "
        "It runs in a sandbox: no files, no network, no packages, no class inheritance, no yield, no del; of the "
        f"standard library there are {', '.join(MODULES)}. Nothing is kept from one script to the next. "
        f"Limits: {config.seconds:g} s of computing, {config.memory // 1_000_000} MB."
    )


def _full_python_hint(message: str, config: PythonExecutorConfig) -> str:
    if message.startswith("ModuleNotFoundError"):
        return "This package is not installed, and none can be installed: do without it."
    if "[Errno 27]" in message or "[Errno 28]" in message:
        return f"A script may write {config.files_mb} MB."
    if message.startswith(("PermissionError", "OSError: [Errno 30]")) or "gaierror" in message:
        return "There is no network, and only the script's own folder can be written to."
    return ""
