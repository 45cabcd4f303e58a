"""What failed in earlier runs warns later ones."""

from typing import Any

from ferrule import ToolEngine, Transient, tool
from ferrule.memory import RunMemory
from ferrule.memory.failure_history import DAY, FailureHistory
from tests.memory.runs import Browser, Clock, Runner


async def fail_and_recover(engine: ToolEngine, book: FailureHistory) -> None:
    call = Runner(engine, RunMemory(listener=book))
    await call("browser", "navigate", url="https://a.test")
    await call("browser", "extract", selector="a.social-count")
    await call("browser", "extract", selector="a.stars")


async def test_a_later_run_is_warned_and_told_the_cure(tmp_path):
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    async with ToolEngine(store=url) as engine:
        engine.register(Browser())
        await fail_and_recover(engine, FailureHistory(engine.store))
    async with ToolEngine(store=url) as engine:
        engine.register(Browser())
        book = FailureHistory(engine.store)
        await book.load()
        (warning,) = book.warnings(engine.registry)
        assert warning == (
            "browser (extract) failed with a value of selector (not_found). What helped: another value of selector."
        )


async def test_another_version_of_the_tool_is_not_blamed():
    async with ToolEngine() as engine:
        engine.register(Browser())
        book = FailureHistory(engine.store)
        await fail_and_recover(engine, book)
        engine.unregister("browser")

        @tool(name="browser")
        async def other(url: str) -> str:
            return url

        engine.register(other)
        assert book.warnings(engine.registry) == [] and len(book.patterns("browser")) == 1


async def test_patterns_fade_and_are_forgotten(tmp_path):
    clock, url = Clock(), f"sqlite:///{tmp_path / 'calls.db'}"
    async with ToolEngine(store=url) as engine:
        engine.register(Browser())
        book = FailureHistory(engine.store, clock=clock)
        await fail_and_recover(engine, book)
        (pattern,) = book.patterns()
        assert pattern.weight(clock.now) == 1.0 and pattern.weight(clock.now + 7 * DAY) == 0.5
        clock.now += 31 * DAY
        assert book.patterns() == []
        later = FailureHistory(engine.store, clock=clock)
        await later.load()
        assert later.patterns() == [] and await engine.store.read_entries("failures") == {}


async def test_failures_count_over_runs_and_can_be_forgotten():
    async with ToolEngine() as engine:
        engine.register(Browser())
        book = FailureHistory(engine.store)
        for _ in range(3):
            await fail_and_recover(engine, book)
        (pattern,) = book.patterns("browser")
        assert 2.9 < pattern.count <= 3 and pattern.recoveries == 3
        assert await book.forget("other") == 0 and await book.forget() == 1
        assert await engine.store.read_entries("failures") == {}


async def test_what_may_work_later_is_no_pattern():
    @tool
    async def fetch(url: str) -> str:
        raise Transient("busy")

    async with ToolEngine() as engine:
        engine.register(fetch)
        book = FailureHistory(engine.store)
        await Runner(engine, RunMemory(listener=book))("fetch", url="https://a.test")
        assert book.patterns() == []


async def test_what_another_version_wrote_is_left_out():
    async with ToolEngine() as engine:
        strange: list[Any] = [None, [], {"tool_id": "x"}, {"strange": 1}, {"parameters": {}}]
        for number, said in enumerate(strange):
            engine.store.write_entry("failures", str(number), said)
        book = FailureHistory(engine.store)
        await book.load()
        assert book.patterns() == []
