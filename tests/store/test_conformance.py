"""What every store does: in memory, in SQLite, in Postgres."""

import asyncio
import json
import statistics
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferrule.errors import StoreError
from ferrule.store import DeletionReport, Retention, ToolCallRecord, ToolKnowledgeStore
from tests.store.records import finish_record, start_record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def test_a_record_comes_back_as_it_was(store_url):
    record = ToolCallRecord(
        record_id="one",
        tool_name="网页导航器",
        params={"q": 'say "hé"\n', "n": [1, 2.5, None, True], "deep": {"a": {"b": []}}},
        action="open",
        caller_id="agent-1",
        caller_type="conversation_agent",
        conversation_id="conv-1",
        workflow_id="wf-1",
        fingerprint="0123456789abcdef",
        source="tools",
        parent_id="zero",
        started_at=1_700_000_000.25,
        status="failed",
        execution_time=0.125,
        wait_time=0.5,
        attempts=3,
        error_type="timeout",
        artifact_id="a" * 64,
        error="took 'too' long\n",
        result={"result": {"partial": [1]}},
        metadata={"cached": False},
    )
    async with ToolKnowledgeStore(store_url) as store:
        store.record_started(record)
        store.record_finished(record)
        assert await store.query_call_records() == [record]
        assert await store.get_call_record("one") == record
        assert record.created_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
        assert record.is_success is False


async def test_a_running_call_can_be_queried(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        record = start_record(store, params={"n": 1}, metadata={"run": "r1"})
        (stored,) = await store.query_call_records(status="running")
        assert (stored.params, stored.metadata, stored.is_success) == ({"n": 1}, {"run": "r1"}, False)
        record.status, record.result = "success", {"result": 2}
        store.record_finished(record)
        assert await store.query_call_records(status="running") == []
        assert (await store.query_call_records())[0].result == {"result": 2}


async def test_records_are_found_by_what_they_are_about(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for n in range(6):
            finish_record(store, conversation_id=f"conv-{n % 2}", workflow_id=f"wf-{n % 3}", caller_id=f"agent-{n % 2}")
        finish_record(store, "http_request", action="get", caller_type="workflow_node")
        assert len(await store.query_call_records(conversation_id="conv-1")) == 3
        assert len(await store.query_call_records(workflow_id="wf-2")) == 2
        assert len(await store.query_call_records(caller_id="agent-0", workflow_id="wf-0")) == 1
        assert [r.tool_name for r in await store.query_call_records(tool_name="http_request")] == ["http_request"]
        assert [r.action for r in await store.query_call_records(action="get")] == ["get"]
        assert len(await store.query_call_records(caller_type="workflow_node")) == 1
        assert await store.query_call_records(conversation_id="nobody") == []
        assert await store.get_call_record("nobody") is None


async def test_records_are_found_by_how_they_ended(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        good = finish_record(store)
        bad = finish_record(store, status="failed", error_type="timeout", error="took too long")
        cancelled = finish_record(store, status="cancelled", error_type="cancelled")
        start_record(store)
        assert await store.query_call_records(is_success=True) == [good]
        assert await store.query_call_records(status="failed") == [bad]
        assert await store.query_call_records(error_type="timeout") == [bad]
        assert await store.query_call_records(is_success=False) == [cancelled, bad]


async def test_records_are_found_by_time_and_text(store_url):
    start = datetime(2030, 1, 1, tzinfo=UTC)
    async with ToolKnowledgeStore(store_url) as store:
        for hour in range(5):
            finish_record(
                store, started_at=(start + timedelta(hours=hour)).timestamp(), params={"q": f'the "{hour}" 100% 小时'}
            )
        finish_record(store, status="failed", error="Disk Full", result={"path": "a_b\n"})
        records = await store.query_call_records(since=start + timedelta(hours=1), until=start + timedelta(hours=3))
        assert [r.created_at.hour for r in records] == [2, 1]
        assert len(await store.query_call_records(text='THE "3" 100% 小时')) == 1
        assert len(await store.query_call_records(text="disk full")) == 1
        assert len(await store.query_call_records(text="a_b\n")) == 1
        assert await store.query_call_records(text="axb") == []


async def test_pages_have_no_gaps_and_no_repeats_while_calls_go_on(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        record_ids = [finish_record(store, started_at=1_900_000_000.0 + n // 7).record_id for n in range(100)]
        pages: list[str] = []
        while page := await store.query_call_records(limit=9, after=pages[-1] if pages else None):
            pages += [record.record_id for record in page]
            finish_record(store)
        assert [record_id for record_id in pages if record_id in record_ids] == record_ids[::-1]
        first = await store.query_call_records(limit=3)
        assert (await store.query_call_records(limit=3, after=first[0]))[:2] == first[1:]


async def test_a_page_after_a_record_that_is_gone_says_so(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        with pytest.raises(StoreError, match="no record 'gone' to continue after"):
            await store.query_call_records(after="gone")
        with pytest.raises(StoreError, match="limit must be at least 1"):
            await store.query_call_records(limit=0)
        with pytest.raises(StoreError, match="no call has the status 'broken'; write one of: running, success"):
            await store.query_call_records(status="broken")


async def test_the_summary_of_a_conversation(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for n in range(10):
            status = "failed" if n == 0 else "success"
            finish_record(store, "echo" if n < 3 else "http_request", conversation_id="conv_001", status=status)
        start_record(store, conversation_id="conv_001")
        finish_record(store, conversation_id="another")
        summary = await store.get_call_summary("conv_001")
        assert (summary.total_calls, summary.successful_calls, summary.failed_calls) == (10, 9, 1)
        assert summary.to_brief() == {
            "total_calls": 10,
            "success_rate": 90.0,
            "tool_usage": {"http_request": 7, "echo": 3},
            "has_errors": True,
        }
        assert (await store.get_call_summary("none")).to_brief() == {
            "total_calls": 0,
            "success_rate": 0.0,
            "tool_usage": {},
            "has_errors": False,
        }


async def test_statistics_count_calls_and_name_the_last_error(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        finish_record(store, status="failed", error="first", started_at=1_900_000_000)
        finish_record(store, status="failed", error="second", started_at=1_900_000_001)
        finish_record(store, started_at=1_900_000_002, execution_time=0.5)
        finish_record(store, "other", status="cancelled")
        start_record(store)
        totals = await store.get_call_statistics()
        assert (totals.total, totals.successful, totals.failed, totals.cancelled, totals.running) == (4, 1, 2, 1, 1)
        assert totals.success_rate == 25.0
        echo = totals.tools["echo"]
        assert (echo.calls, echo.failures, echo.last_error, echo.p50) == (3, 2, "second", 0.5)
        assert totals.tools["other"].mean is None
        assert json.loads(json.dumps(totals.to_dict()))["tools"]["other"]["calls"] == 1


async def test_statistics_of_a_time_or_a_tool(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for n in range(4):
            finish_record(store, f"tool-{n % 2}", started_at=1_900_000_000 + n, execution_time=1.0 + n)
        since = datetime.fromtimestamp(1_900_000_002, UTC)
        assert (await store.get_call_statistics(since=since)).total == 2
        assert (await store.get_call_statistics(since=since)).tools["tool-1"].p99 == 4.0
        assert list((await store.get_call_statistics(tool_name="tool-0")).tools) == ["tool-0"]
        assert (await store.get_call_statistics(tool_name="none")).to_dict()["success_rate"] == 0.0


async def test_statistics_of_all_calls_are_those_that_sorting_them_gives(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        statuses = ["success", "success", "failed", "interrupted", "cancelled", "success", "running"]
        for n in range(450):  # of more tools than one statement asks for
            seconds = 0.0 if n % 5 == 0 else (n * 7919 % 1000 + 1) / 1000
            facts = {"status": statuses[n % 7], "execution_time": seconds, "started_at": 1_900_000_000.0 + n}
            record = start_record if facts["status"] == "running" else finish_record
            record(store, f"tool {n % 110}", error=f"error {n}" if facts["status"] == "failed" else None, **facts)
        all_calls = await store.get_call_statistics()
        counted = await store.get_call_statistics(since=datetime.fromtimestamp(0, UTC))
    assert replace(all_calls, tools={}) == replace(counted, tools={})
    assert list(all_calls.tools) == list(counted.tools) and len(counted.tools) == 110
    for name, figures in counted.tools.items():
        found = all_calls.tools[name]
        assert replace(found, mean=None) == replace(figures, mean=None)
        assert found.mean == pytest.approx(figures.mean)


async def test_only_calls_of_certain_principals_are_found_and_counted(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        shown = [
            finish_record(store, "disk", principal="token:me"),
            finish_record(store, "unknown", principal="agent:m\0e"),
        ]
        finish_record(store, "disk", principal="token:you")
        finish_record(store, "unknown")
        principals = {"token:me", "agent:m\0e"}
        assert await store.query_call_records(principals=principals) == shown[::-1]
        totals = await store.get_call_statistics(principals=principals)
        assert {name: figures.calls for name, figures in totals.tools.items()} == {"disk": 1, "unknown": 1}
        assert await store.query_call_records(principals=()) == []


async def test_percentiles_are_those_of_python(store_url):
    times = {n: [(i * 7919 % 1000 + 1) / 1000 for i in range(n)] for n in (1, 2, 3, 100, 101, 997)}
    async with ToolKnowledgeStore(store_url) as store:
        for number, seconds in times.items():
            for execution_time in seconds:
                finish_record(store, f"tool-{number}", execution_time=execution_time)
            finish_record(store, f"tool-{number}", execution_time=0.0, error_type="validation_error", status="failed")
        tools = (await store.get_call_statistics()).tools
    for number, seconds in times.items():
        figures = tools[f"tool-{number}"]
        cuts = statistics.quantiles(seconds, n=100, method="inclusive") if number > 1 else [seconds[0]] * 99
        assert (figures.p50, figures.p95, figures.p99) == pytest.approx((cuts[49], cuts[94], cuts[98])), number
        assert figures.mean == pytest.approx(statistics.mean(seconds)), number


async def test_old_records_are_deleted_and_running_ones_kept(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        for n in range(5000):
            finish_record(store, started_at=1_000_000_000 + n)
        start_record(store, started_at=1_000_000_000)
        new = finish_record(store)
        assert await store.delete_records(older_than=datetime.fromtimestamp(1_000_004_000, UTC)) == DeletionReport(
            calls=4000
        )
        assert await store.delete_records(older_than=timedelta(hours=1)) == DeletionReport(calls=1000)
        assert [r.status for r in await store.query_call_records()] == ["success", "running"]
        assert await store.get_call_record(new.record_id) == new


async def test_retention_keeps_the_newest_and_the_young(store_url):
    retention = Retention(max_age=timedelta(days=1), max_records=10)
    async with ToolKnowledgeStore(store_url, retention=retention) as store:
        finish_record(store, started_at=1_000_000_000)
        await store.flush()
        assert await store.query_call_records() == []
        newest = [finish_record(store) for _ in range(30)][-10:]
        assert await store.query_call_records() == newest[::-1]


async def test_values_that_json_or_a_database_cannot_represent_do_not_lose_the_record(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        odd = {"nul": "a\0b", "half": "\ud800", "nan": float("nan"), "long": 2**100, "set": {1}, "path": timedelta(1)}
        finish_record(store, "to\0ol", params=odd, result={"n": 10**400}, error="nul \0", conversation_id="c\0")
        finish_record(store, "half \udfff", params={1: (2, 3)}, execution_time=float("nan"))
        second, first = await store.query_call_records()
        assert first.params == odd | {"nan": None, "set": [1], "path": "1 day, 0:00:00"}
        assert (first.result, first.error) == ({"n": 10**400}, "nul \0")
        assert (second.tool_name, second.params, second.execution_time) == ("half \udfff", {"1": [2, 3]}, 0.0)
        assert list((await store.get_call_statistics()).tools) == ["half \udfff", "to\0ol"]
        assert (await store.get_call_statistics(tool_name="to\0ol")).total == 1
        assert store.failures == 0


async def test_two_records_whose_ids_share_a_beginning_are_two(store_url):
    ids = ["a", 'a",', 'a","b', "a,b", "a\\", 'a\\",', "ä"]
    async with ToolKnowledgeStore(store_url) as store:
        for record_id in ids:
            record = ToolCallRecord(record_id=record_id, tool_name="echo")
            store.record_started(record)
            record.status = "success"
            store.record_finished(record)
        assert {(r.record_id, r.status) for r in await store.query_call_records()} == {(i, "success") for i in ids}


async def test_secrets_are_not_in_what_is_read_back(store_url):
    async with ToolKnowledgeStore(store_url) as store:
        record = ToolCallRecord(
            record_id="one", tool_name="login", params={"user": "bob", "pin": "hunter2", "token": "t"}
        )
        store.record_started(record, secret_names=frozenset({"pin"}))
        record.status, record.error = "failed", "bob may not use hunter2"
        record.result, record.metadata = {"url": "https://bob:pw@h/?pin=hunter2"}, {"password": "x"}
        store.record_finished(record, secret_names=frozenset({"pin"}))
        (stored,) = await store.query_call_records()
        assert stored.params == {"user": "bob", "pin": "[redacted]", "token": "[redacted]"}
        assert stored.error == "bob may not use [redacted]"
        assert (stored.result["url"], stored.metadata) == (
            "https://bob:[redacted]@h/?pin=[redacted]",
            {"password": "[redacted]"},
        )


@given(params=st.dictionaries(st.text(), JSON, max_size=4), result=st.dictionaries(st.text(), JSON, max_size=4))
def test_everything_that_is_not_secret_comes_back(params, result):
    async def main() -> None:
        async with ToolKnowledgeStore() as store:
            assume(store.redaction.redact([params, result]) == [params, result])
            finish_record(store, params=params, result=result)
            (stored,) = await store.query_call_records()
            assert (stored.params, stored.result) == (params, result)

    asyncio.run(main())
