"""Who is measured, and what each can be measured at."""

from __future__ import annotations

from dataclasses import dataclass

CALL, LIMIT, REGISTRY, IMPORT, SYNC, RECORD, LOOP, STUBBORN, REPLAY, PLAN, TOGETHER, DOOR = BENCHMARKS = (
    "call",
    "limit",
    "registry",
    "import",
    "sync",
    "record",
    "loop",
    "stubborn",
    "replay",
    "plan",
    "together",
    "door",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Somebody who can do what a benchmark asks for. `module` says how, in functions named like the benchmarks."""

    name: str
    module: str
    benchmarks: tuple[str, ...]
    distributions: tuple[str, ...] = ()
    """What to install in an environment of its own; nothing means: runs in the project's environment."""
    imports: tuple[str, ...] = ()
    """Statements whose cost is measured, each in fresh processes."""


FERRULE = Contestant(
    name="ferrule",
    module="ferrule",
    benchmarks=BENCHMARKS,
    imports=("import ferrule", "from ferrule import tool, ToolEngine"),
)

CONTESTANTS = (
    FERRULE,
    Contestant(
        name="floor",
        module="floor",
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, SYNC, RECORD, LOOP, TOGETHER),
        imports=("import asyncio", "import pydantic; pydantic.BaseModel"),
    ),
    Contestant(
        name="pydantic-ai",
        module="pydantic_ai",
        distributions=("pydantic-ai-slim",),
        benchmarks=(CALL, REGISTRY, IMPORT, LOOP, STUBBORN),
        imports=("from pydantic_ai import Agent",),
    ),
    Contestant(
        name="openai-agents",
        module="openai_agents",
        distributions=("openai-agents",),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, STUBBORN),
        imports=("from agents import Agent, Runner",),
    ),
    Contestant(
        name="strands",
        module="strands",
        distributions=("strands-agents",),
        benchmarks=(CALL, REGISTRY, IMPORT, LOOP, STUBBORN),
        imports=("from strands import Agent",),
    ),
    Contestant(
        name="fastmcp",
        module="fastmcp",
        distributions=("fastmcp",),
        benchmarks=(CALL, REGISTRY, IMPORT),
        imports=("from fastmcp import FastMCP",),
    ),
    Contestant(
        name="langchain",
        module="langchain",
        distributions=("langchain", "langgraph", "langgraph-checkpoint-sqlite"),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, STUBBORN, PLAN, TOGETHER),
        imports=("from langchain.agents import create_agent", "from langgraph.prebuilt import ToolNode"),
    ),
    Contestant(
        name="smolagents",
        module="smolagents",
        distributions=("smolagents",),
        benchmarks=(CALL, LIMIT, REGISTRY, IMPORT, LOOP, STUBBORN),
        imports=("from smolagents import ToolCallingAgent",),
    ),
)
