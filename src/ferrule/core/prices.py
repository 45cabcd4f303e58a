"""What models and paid tools cost: prices, and the cost of a usage or a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from ferrule.core.messages import Usage
from ferrule.core.spec import ToolCapability, ToolSpec
from ferrule.errors import SetupError

V = TypeVar("V")

FREE_MODELS = ("offline", "local*", "scripted*")
"""Models that run on this machine: they cost nothing unless a price says otherwise."""
_PER_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """The price of a million tokens of a model."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    """Of input tokens from a prompt cache; None: like other input."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise SetupError(f"The price {name} must be 0 or more, not {value!r}.")

    def cost_of(self, usage: Usage) -> float:
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached is None else self.cached
        total = (usage.input_tokens - cached) * self.input + cached * cached_price + usage.output_tokens * self.output
        return total / _PER_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Prices of models and tools in one currency. Names may have wildcards; an exact name comes first."""

    currency: str = "USD"
    models: dict[str, ModelPrice] = field(default_factory=dict)
    """By model, such as `openai:gpt-5.4` or `gpt-5.4*`."""
    tools: dict[str, float] = field(default_factory=dict)
    """Of one call, by tool or `tool__action`; comes before the price in the tool's spec."""

    def __post_init__(self) -> None:
        for name, price in self.tools.items():
            if not 0 <= price < float("inf"):
                raise SetupError(f"The price of the tool {name!r} must be 0 or more, not {price!r}.")

    def find_model_price(self, *names: str) -> ModelPrice | None:
        """Return the price of a model with these names, or with their part after the provider; else None."""
        names = (*names, *(name.partition(":")[2] for name in names if ":" in name))
        price = next((price for name in names if (price := _look_up(self.models, name)) is not None), None)
        if price is None and any(fnmatchcase(name, pattern) for name in names for pattern in FREE_MODELS):
            return ModelPrice()
        return price

    def price_of_call(self, spec: ToolSpec, capability: ToolCapability) -> float:
        """Return the price of a call of an action: of this list, else of its spec, else 0."""
        names = (f"{spec.tool_id}__{capability.name}", spec.tool_id)
        price = next((price for name in names if (price := _look_up(self.tools, name)) is not None), None)
        return price if price is not None else spec.price_of(capability) or 0.0


def _look_up(prices: Mapping[str, V], name: str) -> V | None:
    if name in prices:
        return prices[name]
    return next((price for pattern, price in prices.items() if fnmatchcase(name, pattern)), None)
