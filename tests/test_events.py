import asyncio
import threading
import time

import pytest

from ferrule.events import QUEUE_LENGTH, EventBus, ToolEngineEvent, ToolEngineEventType

LOADED, FAILED = ToolEngineEventType.TOOL_LOADED, ToolEngineEventType.EXECUTION_FAILED


def event(event_type: ToolEngineEventType = LOADED, name: str = "t") -> ToolEngineEvent:
    return ToolEngineEvent(event_type=event_type, tool_name=name)


def test_a_quick_sync_subscriber_sees_events_at_once_and_in_order():
    bus, seen = EventBus(), []
    bus.subscribe(lambda e: seen.append(e.tool_name))
    for name in "abc":
        bus.emit(event(name=name))
    assert seen == ["a", "b", "c"]


async def test_an_async_subscriber_sees_events_in_order():
    bus, seen = EventBus(), []

    async def watch(e):
        await asyncio.sleep(0)
        seen.append(e.tool_name)

    bus.subscribe(watch)
    for name in "abc":
        bus.emit(event(name=name))
    await bus.drain()
    assert seen == ["a", "b", "c"]


def test_filters_take_types_or_a_function():
    bus = EventBus()
    by_type: list[ToolEngineEvent] = []
    by_function: list[ToolEngineEvent] = []
    bus.subscribe(by_type.append, {FAILED})
    bus.subscribe(by_function.append, lambda e: e.tool_name == "x")
    for e in (event(LOADED, "x"), event(FAILED, "y")):
        bus.emit(e)
    assert [e.tool_name for e in by_type] == ["y"]
    assert [e.tool_name for e in by_function] == ["x"]


def test_a_subscription_ends_by_its_own_function_or_by_its_callback():
    bus = EventBus()
    seen: list[ToolEngineEvent] = []
    end = bus.subscribe(seen.append)
    end()
    bus.subscribe(seen.append)
    assert bus.unsubscribe(seen.append)
    assert not bus.unsubscribe(seen.append)
    bus.emit(event())
    assert seen == []
    assert not bus.watched


async def test_a_slow_sync_subscriber_is_moved_to_its_own_thread():
    bus, threads = EventBus(), []

    def watch(e):
        threads.append(threading.current_thread().name)
        time.sleep(0.02)

    bus.subscribe(watch)
    for _ in range(4):
        bus.emit(event())
    emitted_from = len(threads)
    await bus.aclose()
    assert emitted_from < 4
    assert threads == ["MainThread"] + ["ferrule-subscriber"] * 3


def test_a_failing_subscriber_harms_nobody(caplog):
    bus = EventBus()
    seen: list[ToolEngineEvent] = []

    def broken(e):
        raise RuntimeError("boom")

    bus.subscribe(broken)
    bus.subscribe(seen.append, lambda e: bool(1 / 0))
    bus.subscribe(seen.append)
    bus.emit(event())
    assert len(seen) == 1
    assert "boom" in caplog.text


async def test_a_subscriber_that_never_comes_back_loses_the_oldest(caplog):
    bus, seen, gate = EventBus(), [], asyncio.Event()

    async def watch(e):
        await gate.wait()
        seen.append(int(e.tool_name))

    bus.subscribe(watch)
    for n in range(QUEUE_LENGTH + 5):
        bus.emit(event(name=str(n)))
    gate.set()
    await bus.drain()
    assert seen[-1] == QUEUE_LENGTH + 4
    assert len(seen) == QUEUE_LENGTH
    assert "oldest events dropped" in caplog.text
    await bus.aclose()


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="must be a function"):
        EventBus().subscribe("x")  # type: ignore[arg-type]
