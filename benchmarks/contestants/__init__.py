"""The benchmarks, and the contestants that are measured by them."""

from __future__ import annotations

from dataclasses import dataclass

CALL, LIMIT, REGISTRY, IMPORT, START, SYNC, RECORD = "call", "limit", "registry", "import", "start", "sync", "record"
LOOP, PROMPT, FAILING_CALL, MEMORY = "loop", "prompt", "failing_call", "memory"
PLAN, PARALLEL, FAST_PATH = "plan", "parallel", "fast_path"
BENCHMARKS = (
    *(CALL, LIMIT, REGISTRY, IMPORT, START, SYNC, RECORD),
    *(LOOP, PROMPT, FAILING_CALL, MEMORY),
    *(PLAN, PARALLEL, FAST_PATH),
)
MCP, SERVER, GATEWAY, FLEET, PAGE, SEARCH = "mcp", "server", "gateway", "fleet", "page", "search"
MODULES = {
    MCP: "benchmarks.mcp_call",
    SERVER: "benchmarks.server_calls",
    GATEWAY: "benchmarks.server_gateway",
    FLEET: "benchmarks.fleet_limits",
    PAGE: "benchmarks.page_load",
    SEARCH: "benchmarks.tool_search",
}
"""Benchmarks without contestants of their own: one process measures all rows, alternately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A library to be measured. Its `module` has one function per benchmark, with the name of the benchmark."""

    name: str
    module: str
    benchmarks: tuple[str, ...]
    distributions: tuple[str, ...] = ()
    """Packages to install in an environment of its own; without any it runs in the project's environment."""
    imports: tuple[str, ...] = ()
    """Statements to measure in new processes."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Arguments of the interpreter to measure in new processes, after their name in the table."""


_COMMAND_LINE = ("-c", "from ferrule.cli import main; main()")
FERRULE = Contestant(
    name="ferrule",
    module="ferrule",
    benchmarks=BENCHMARKS,
    imports=("import ferrule", "from ferrule import tool, ToolEngine"),
    commands=(
        ("ferrule --version", *_COMMAND_LINE, "--version"),
        ("ferrule call calculator expression=2+2", *_COMMAND_LINE, "call", "calculator", "expression=2+2"),
        (
            "ferrule ask what is 15% of 80?",
            *_COMMAND_LINE,
            "ask",
            "--model",
            "offline",
            "--no-cache",
            "what is 15% of 80?",
        ),
    ),
)

CONTESTANTS = (
    FERRULE,
    Contestant(
        name="baseline",
        module="baseline",
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, START, SYNC, RECORD, LOOP, PARALLEL),
        imports=("import asyncio", "import pydantic; pydantic.BaseModel"),
        commands=(("python -c pass", "-c", "pass"),),
    ),
    Contestant(
        name="pydantic-ai",
        module="pydantic_ai",
        distributions=("pydantic-ai-slim",),
        benchmarks=(CALL, REGISTRY, IMPORT, LOOP, PROMPT, FAILING_CALL),
        imports=("from pydantic_ai import Agent",),
    ),
    Contestant(
        name="openai-agents",
        module="openai_agents",
        distributions=("openai-agents",),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, PROMPT, FAILING_CALL),
        imports=("from agents import Agent, Runner",),
    ),
    Contestant(
        name="strands",
        module="strands",
        distributions=("strands-agents",),
        benchmarks=(CALL, REGISTRY, IMPORT, LOOP, PROMPT, FAILING_CALL),
        imports=("from strands import Agent",),
    ),
    Contestant(
        name="fastmcp",
        module="fastmcp",
        distributions=("fastmcp",),
        benchmarks=(CALL, REGISTRY, IMPORT, PROMPT),
        imports=("from fastmcp import FastMCP",),
    ),
    Contestant(
        name="langchain",
        module="langchain",
        distributions=("langchain", "langgraph", "langgraph-checkpoint-sqlite"),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, PROMPT, FAILING_CALL, PLAN, PARALLEL),
        imports=("from langchain.agents import create_agent", "from langgraph.prebuilt import ToolNode"),
    ),
    Contestant(
        name="smolagents",
        module="smolagents",
        distributions=("smolagents",),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, PROMPT, FAILING_CALL),
        imports=("from smolagents import ToolCallingAgent",),
    ),
)
