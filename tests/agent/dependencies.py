"""Tools that use the dependencies of a run, where worker processes can import them."""

import threading
from dataclasses import dataclass, field

from ferrule import RunContext, ToolExecutionContext, tool


@dataclass
class Shop:
    name: str
    orders: list[str] = field(default_factory=list)


@dataclass
class LockedShop:
    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)


@tool
async def order(context: RunContext[Shop], item: str) -> int:
    """Order something."""
    context.deps.orders.append(item)
    return len(context.deps.orders)


@tool
async def order_twice(context: RunContext[Shop], item: str) -> int:
    """Order something twice, by another tool."""
    for _ in range(2):
        result = await context.call_tool("order", {"item": item})
    count: int = result.value
    return count


@tool
def name_in_worker(context: RunContext[Shop]) -> str:
    """Tell the name of the shop, in a worker process."""
    return f"{context.deps.name} {threading.main_thread() is threading.current_thread()}"


@tool(isolation="thread")
def name_in_thread(context: RunContext[LockedShop]) -> str:
    """Tell the name of the shop, in a thread."""
    with context.deps.lock:
        return context.deps.name


@tool
def caller_in_worker(context: ToolExecutionContext) -> str:
    """Tell who calls, without the dependencies."""
    return context.caller_type


@tool(cacheable=True)
async def cached_name(context: RunContext[Shop]) -> str:
    """Tell the name of the shop; the result may be cached."""
    return context.deps.name


@tool(destructive=True)
async def close(context: RunContext[Shop]) -> str:
    """Close the shop for good."""
    return f"closed {context.deps.name}"
