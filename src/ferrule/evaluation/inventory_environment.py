"""The environment of the shipped suite `inventory`: a stock of goods, in the manner of tau-bench."""

from __future__ import annotations

from typing import Any


class InventoryEnvironment:
    """A stock of goods with tools to look at it and to change it."""

    def __init__(self) -> None:
        self._stock: dict[str, int] = {}

    def reset(self, metadata: dict[str, Any]) -> None:
        self._stock = dict(metadata.get("stock", {}))

    def check_state(self, metadata: dict[str, Any]) -> str | None:
        expected = metadata.get("final_stock", metadata.get("stock", {}))
        return None if self._stock == expected else f"the stock is {self._stock}, not {expected}"

    async def get_stock(self, product: str) -> int:
        """Return how many pieces of a product are in stock."""
        return self._stock.get(product, 0)

    async def add_stock(self, product: str, amount: int) -> int:
        """Add pieces of a product to the stock."""
        self._stock[product] = self._stock.get(product, 0) + amount
        return self._stock[product]

    async def remove_stock(self, product: str, amount: int) -> int:
        """Remove pieces of a product from the stock."""
        if self._stock.get(product, 0) < amount:
            raise ValueError(f"only {self._stock.get(product, 0)} pieces of {product} are in stock")
        self._stock[product] -= amount
        return self._stock[product]
