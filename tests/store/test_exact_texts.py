"""Texts come back exactly as they were written, with NUL characters and lone surrogates, from every store."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ferrule import UnifiedToolLibrary, tool
from ferrule.agent import Agent, AgentState
from ferrule.core.secrets import Redaction
from ferrule.store import ToolKnowledgeStore
from ferrule.testing import ScriptedModel
from ferrule.workflow import SimpleWorkflow
from tests.store.records import finish_record
from tests.support.tiers import examples
from tests.workflow.plans import plan, step

ANY_CHARACTER = st.characters(exclude_categories=())
REJECTED_BY_DATABASES = st.sampled_from("\0\ud800\udfff\ufdd0\ufffd0a \\\"'")
TEXTS = st.text(ANY_CHARACTER | REJECTED_BY_DATABASES, max_size=12)
IDS = st.text(ANY_CHARACTER | REJECTED_BY_DATABASES, min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def assume_no_secret(store: ToolKnowledgeStore, *values: Any) -> None:
    """Hypothesis finds the names of secrets in the code, and what they name is not stored."""
    assume(not store.redaction.may_contain_secret(json.dumps(values)))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all examples of a test: Hypothesis calls plain functions."""
    with asyncio.Runner() as runner:
        yield runner


def test_entries_come_back_exactly(store_url, runner):
    store = ToolKnowledgeStore(store_url)
    runner.run(store.__aenter__())

    @given(stream=IDS, key=TEXTS, value=VALUES, secret=st.booleans())
    def check(stream: str, key: str, value: Any, secret: bool) -> None:
        assume_no_secret(store, value)
        written = {"password": "hunter2", "value": value} if secret else value  # the redacted way is another one
        expected = {"password": "[redacted]", "value": value} if secret else value
        store.write_entry(stream, key, written)
        read = runner.run(store.read_entries(stream))
        assert read[key] == expected and repr(read[key]) == repr(expected)
        assert stream in runner.run(store.list_streams(stream[:1]))
        assert runner.run(store.delete_entries(stream, [key])) == 1
        assert key not in runner.run(store.read_entries(stream))

    check()
    assert store.failures == 0
    runner.run(store.aclose())


def test_records_come_back_exactly(store_url, runner):
    store = ToolKnowledgeStore(store_url)
    runner.run(store.__aenter__())

    @given(conversation=IDS, params=st.dictionaries(TEXTS, VALUES, max_size=3), error=TEXTS, secret=st.booleans())
    def check(conversation: str, params: dict[str, Any], error: str, secret: bool) -> None:
        assume_no_secret(store, params, error)
        hidden = {"password": "hunter2"} if secret else {}
        record = finish_record(store, params={**params, **hidden}, conversation_id=conversation, error=error)
        (read, *_) = runner.run(store.query_call_records(conversation_id=conversation))
        assert read.record_id == record.record_id and read.conversation_id == conversation
        assert read.params == {**params, **dict.fromkeys(hidden, "[redacted]")} and read.error == error
        assert runner.run(store.get_call_summary(conversation)).total_calls > 0

    check()
    assert store.failures == 0
    runner.run(store.aclose())


def as_json_sends(text: str) -> bool:
    """Two surrogates that form a pair are one character for JSON, in which models send arguments."""
    return bool(json.loads(json.dumps(text)) == text)


@pytest.mark.parametrize(
    ("store_url", "kind"),
    [
        ("memory", "agent"),
        ("sqlite", "agent"),
        ("sqlite", "plan"),
        pytest.param("postgres", "agent", marks=pytest.mark.integration),
    ],
    indirect=["store_url"],
)
def test_an_approved_call_gets_exactly_the_arguments_that_were_approved(store_url, runner, tmp_path: Path, kind):
    received: list[str] = []

    @tool(destructive=True)
    async def pay(order: str) -> str:
        received.append(order)
        return "paid"

    def make_runner(library: UnifiedToolLibrary, order: str, *replies: Any) -> Agent | SimpleWorkflow:
        if kind == "agent":
            return Agent(library, ScriptedModel(replies or [{"name": "pay", "arguments": {"order": order}}]))
        return SimpleWorkflow(library, ScriptedModel(replies or [plan(step(1, "pay", order=order))]))

    async def approve(run_id: str, order: str) -> None:
        async with UnifiedToolLibrary(store=ToolKnowledgeStore(store_url)) as library:
            library.register(pay)
            first = await make_runner(library, order).run("Pay", run_id=run_id)
            assert first.state is AgentState.WAITING and first.approvals[0].arguments == {"order": order}
            # Another object has only what is in the store.
            last = await make_runner(library, order, "paid").resume(run_id, approvals=True)
            assert last.state is AgentState.FINISHED

    used: set[str] = set()
    redaction = Redaction()

    @examples(0.2)
    @example(run_id="run \udfff \0", order="order \ud800 \0 \ufdd0")
    @given(run_id=IDS, order=TEXTS.filter(as_json_sends))
    def check(run_id: str, order: str) -> None:
        assume(not redaction.may_contain_secret(json.dumps(order)))
        received.clear()
        while run_id in used:
            run_id += "\0"
        used.add(run_id)
        runner.run(approve(run_id, order))
        assert received == [order]

    check()
