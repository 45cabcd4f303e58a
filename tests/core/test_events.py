import asyncio

import pytest

from ferrule.core import events
from ferrule.core.events import MAX_QUEUE_LENGTH, EventBus, ToolEngineEvent, ToolEngineEventType

LOADED, FAILED = ToolEngineEventType.TOOL_LOADED, ToolEngineEventType.EXECUTION_FAILED


def event(event_type: ToolEngineEventType = LOADED, name: str = "t") -> ToolEngineEvent:
    return ToolEngineEvent(event_type=event_type, tool_name=name)


def test_a_quick_sync_subscriber_is_called_directly_and_in_order(monkeypatch):
    monkeypatch.setattr(events, "SLOW_CALLBACK_SECONDS", 60.0)
    bus, names = EventBus(), []
    bus.subscribe(lambda e: names.append(e.tool_name))
    for name in "abc":
        bus.emit(event(name=name))
    assert names == ["a", "b", "c"]


async def test_an_async_subscriber_receives_events_in_order():
    bus, names = EventBus(), []

    async def watch(e):
        await asyncio.sleep(0)
        names.append(e.tool_name)

    bus.subscribe(watch)
    for name in "abc":
        bus.emit(event(name=name))
    await bus.drain(60)
    assert names == ["a", "b", "c"]


def test_a_filter_is_a_set_of_types_or_a_function():
    bus = EventBus()
    by_type: list[ToolEngineEvent] = []
    by_function: list[ToolEngineEvent] = []
    bus.subscribe(by_type.append, {FAILED})
    bus.subscribe(by_function.append, lambda e: e.tool_name == "x")
    for e in (event(LOADED, "x"), event(FAILED, "y")):
        bus.emit(e)
    assert [e.tool_name for e in by_type] == ["y"]
    assert [e.tool_name for e in by_function] == ["x"]


def test_a_subscription_is_ended_by_its_function_or_by_its_callback():
    bus = EventBus()
    received: list[ToolEngineEvent] = []
    end = bus.subscribe(received.append)
    end()
    bus.subscribe(received.append)
    assert bus.unsubscribe(received.append)
    assert not bus.unsubscribe(received.append)
    bus.emit(event())
    assert received == []
    assert not bus.has_subscribers


async def test_a_slow_sync_subscriber_is_named_once_in_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(events, "SLOW_CALLBACK_SECONDS", 0.0)  # every callback is slow
    bus, received = EventBus(), []

    def watch(e):
        received.append(e)

    bus.subscribe(watch)
    for _ in range(4):
        bus.emit(event())
    [record] = caplog.records
    assert "watch" in record.getMessage() and "subscribe an async function" in record.getMessage()
    assert len(received) == 4


def test_a_failing_subscriber_does_not_affect_others(caplog):
    bus = EventBus()
    received: list[ToolEngineEvent] = []

    def broken(e):
        raise RuntimeError("boom")

    bus.subscribe(broken)
    bus.subscribe(received.append, lambda e: bool(1 / 0))
    bus.subscribe(received.append)
    bus.emit(event())
    assert len(received) == 1
    assert "boom" in caplog.text


async def test_a_subscriber_with_a_full_queue_loses_the_oldest_events(caplog):
    bus, received, gate = EventBus(), [], asyncio.Event()

    async def watch(e):
        await gate.wait()
        received.append(int(e.tool_name))

    bus.subscribe(watch)
    for n in range(MAX_QUEUE_LENGTH + 5):
        bus.emit(event(name=str(n)))
    gate.set()
    await bus.drain(60)
    assert received[-1] == MAX_QUEUE_LENGTH + 4
    assert len(received) == MAX_QUEUE_LENGTH
    assert "oldest events dropped" in caplog.text
    await bus.aclose()


def test_a_subscriber_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="must be a function"):
        EventBus().subscribe("x")  # type: ignore[arg-type]
