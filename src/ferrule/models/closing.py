"""Closing a model, whether it has anything to close or not."""

from __future__ import annotations

from ferrule.models.model import Model


async def close_model(model: Model) -> None:
    """Give back what the model holds, if it has an `aclose`."""
    close = getattr(model, "aclose", None)
    if close is not None:
        await close()
