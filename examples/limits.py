"""Twenty calls of a service that bears two at a time: the others wait for a slot, and none is lost."""

import asyncio

from ferrule import ConcurrencyConfig, UnifiedToolLibrary, tool

running, most = 0, 0


@tool(read_only=True, bucket="translator")
async def translate(text: str) -> str:
    """Translate a text."""
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    return text.upper()


async def main() -> None:
    limits = ConcurrencyConfig(max_concurrent=10, bucket_limits={"translator": 2})
    async with UnifiedToolLibrary(concurrency=limits) as library:
        library.register(translate)
        results = await asyncio.gather(*(library.execute("translate", {"text": f"text {n}"}) for n in range(20)))
        print(sum(result.is_success for result in results), "calls, at most", most, "at the same time")


if __name__ == "__main__":
    asyncio.run(main())
