"""An orchestrator with a library of its own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ferrule import UnifiedToolLibrary
from ferrule.orchestrator import Orchestrator


@asynccontextmanager
async def open_orchestrator(tools: Sequence[Any], model: Any, **options: Any) -> AsyncIterator[Orchestrator]:
    async with UnifiedToolLibrary() as library:
        library.register(*tools)
        async with Orchestrator(library, model, **options) as orchestrator:
            yield orchestrator
