"""Every test of workflows runs on both."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.models import Model
from ferrule.workflow import GraphWorkflow, SimpleWorkflow


@pytest.fixture(params=["simple", "langgraph"])
def workflow(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a workflow: `async with workflow(library, model) as flow`."""
    if request.param == "langgraph":
        pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')

    @asynccontextmanager
    async def opened(library: UnifiedToolLibrary, model: Model, **options: Any) -> AsyncIterator[Any]:
        flow = (SimpleWorkflow if request.param == "simple" else GraphWorkflow)(library, model, **options)
        try:
            yield flow
        finally:
            close = getattr(flow, "aclose", None)
            if close is not None:
                await close()

    return opened
