"""Every test of workflows runs on both."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.models import Model
from ferrule.workflow import GraphWorkflow, SimpleWorkflow


@pytest.fixture(params=["simple", "langgraph"])
def workflow(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a workflow: `async with workflow(tools, model) as flow`, or with a library instead of the tools."""
    if request.param == "langgraph":
        pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')

    @asynccontextmanager
    async def opened(source: UnifiedToolLibrary | list[Any], model: Model, **options: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            if isinstance(source, list):
                library = await stack.enter_async_context(UnifiedToolLibrary())
                library.register(*source)
            else:
                library = source
            flow = (SimpleWorkflow if request.param == "simple" else GraphWorkflow)(library, model, **options)
            yield flow

    return opened
