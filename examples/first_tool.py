"""A function becomes a tool: its schema comes from the type hints, and every call is checked and recorded."""

import asyncio

from ferrule import UnifiedToolLibrary, tool


@tool(read_only=True, timeout=5)
async def shipping_cost(weight: float, country: str = "DE") -> float:
    """Compute the cost of a parcel in euros.

    Args:
        weight: in kilograms
        country: where it goes, as a code of two letters
    """
    return round((4.5 if country == "DE" else 9.0) + 0.8 * weight, 2)


async def main() -> None:
    async with UnifiedToolLibrary() as library:
        library.register(shipping_cost)
        result = await library.execute("shipping_cost", {"weight": "2.5"})  # the text is corrected to a number
        print(result.output)
        print((await library.execute("shipping_cost", {"country": "FR"})).error)
        print((await library.execute("shiping_cost", {})).error)
        statistics = await library.engine.get_call_statistics()
        print(f"{statistics.total} calls, {statistics.success_rate:.0f} % successful")


if __name__ == "__main__":
    asyncio.run(main())
