"""A call that is known to fail is not made again."""

import asyncio

import pytest

from ferrule import NeedsApproval, Refuse, Retry, ToolEngine, Transient, tool
from ferrule.memory import ExecutionContext, FailureClass, FailureClassifier, RunMemory
from ferrule.memory.failures import POLICIES
from tests.memory.runs import Browser, Clock, Runner, open_run
from tests.support.engines import engine_with
from tests.support.waiting import until


async def test_a_call_that_failed_is_answered_from_memory():
    browser = Browser()
    async with open_run(browser) as call:
        first = await call("browser", "extract", selector="a.social-count")
        for _ in range(14):
            again = await call("browser", "extract", selector="a.social-count")
        assert first.error_type == "execution_error" and again.error_type == "known_failure"
        assert browser.executed == [("extract", "a.social-count")]
        assert "failed once before and was not made again: " in again.error
        assert "Selector 'a.social-count' not found" in again.error
        assert again.metadata["failure_class"] == "not_found" and again.metadata["refusals"] == 14


async def test_without_memory_it_is_made_every_time():
    browser = Browser()
    async with engine_with(browser) as engine:
        for _ in range(5):
            await Runner(engine, None)("browser", "extract", selector="a.social-count")
        assert len(browser.executed) == 5


async def test_cosmetic_differences_are_no_difference():
    browser = Browser()
    async with open_run(browser) as call:
        await call("browser", "extract", selector="a.social-count", reason="first try")
        for params in ({"reason": "second"}, {"timeout": 3}, {"attribute": "text"}, {"selector": " a.social-count "}):
            again = await call("browser", "extract", **{"selector": "a.social-count", **params})
            assert again.error_type == "known_failure"
        assert len(browser.executed) == 1


async def test_the_failing_value_is_known_in_other_calls_of_the_page():
    browser = Browser()
    async with open_run(browser) as call:
        await call("browser", "extract", selector="a.social-count")
        other_attribute = await call("browser", "extract", selector="a.social-count", attribute="href")
        other_action = await call("browser", "click", selector="a.social-count")
        assert other_attribute.error_type == other_action.error_type == "known_failure"
        assert (await call("browser", "extract", selector="a.stars")).output == {"result": "28"}


async def test_a_navigation_opens_the_question_again():
    browser = Browser()
    async with open_run(browser) as call:
        await call("browser", "extract", selector="a.social-count")
        await call("browser", "navigate", url="https://b.test")
        assert (await call("browser", "extract", selector="a.social-count")).output == {"result": "7"}


async def test_the_same_change_does_not_open_it_for_ever():
    browser = Browser()
    async with open_run(browser) as call:
        for _ in range(20):
            await call("browser", "navigate", url="https://a.test")
            await call("browser", "extract", selector="a.social-count")
        assert browser.executed.count(("extract", "a.social-count")) == 3


async def test_a_read_only_success_opens_nothing():
    browser = Browser()
    async with open_run(browser) as call:
        await call("browser", "extract", selector="a.social-count")
        await call("browser", "observe")
        assert (await call("browser", "extract", selector="a.social-count")).error_type == "known_failure"


async def test_a_change_made_by_another_tool_opens_what_it_speaks_of():
    files: dict[str, str] = {}

    @tool(read_only=True)
    async def read_file(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(f"No such file: {path}")
        return files[path]

    @tool
    async def write_file(path: str, text: str) -> None:
        files[path] = text

    async with open_run(read_file, write_file) as call:
        await call("read_file", path="notes.txt")
        await call("write_file", path="other.txt", text="x")
        assert (await call("read_file", path="notes.txt")).error_type == "known_failure"
        await call("write_file", path="notes.txt", text="hello")
        assert (await call("read_file", path="notes.txt")).output == {"result": "hello"}


async def test_what_could_be_made_is_not_held_back_for_not_being_there():
    made: list[str] = []

    @tool(name="files")
    class Files:
        """Files."""

        @tool(read_only=True)
        async def read(self, path: str) -> str:
            raise FileNotFoundError(f"{path} not found")

        @tool(read_only=True)
        async def size(self, path: str) -> int:
            raise FileNotFoundError(f"{path} not found")

        @tool
        async def write(self, path: str) -> str:
            made.append(path)
            return "written"

    async with open_run(Files()) as call:
        await call("files", "read", path="a/notes.txt")
        assert (await call("files", "size", path="a/notes.txt")).error_type == "known_failure"
        assert (await call("files", "write", path="a/notes.txt")).is_success and made == ["a/notes.txt"]


async def test_a_transient_failure_has_its_tries_and_then_rests():
    clock, executed = Clock(), []

    @tool
    async def fetch(url: str) -> str:
        executed.append(url)
        raise Transient("the service is busy")

    async with open_run(fetch, memory=RunMemory(clock=clock)) as call:
        results = [await call("fetch", url="u") for _ in range(6)]
        assert len(executed) == 3 and results[-1].error_type == "known_failure"
        assert results[-1].metadata["remedy"] == "retry_later"
        clock.now += 31
        await call("fetch", url="u")
        await call("fetch", url="u")
        assert len(executed) == 4


async def test_more_time_is_another_call_where_time_was_wanting():
    executed: list[float] = []

    @tool(read_only=True)
    async def wait_for(selector: str, timeout: float = 5) -> str:
        executed.append(timeout)
        raise RuntimeError(f"Timeout {timeout}s exceeded while waiting for selector {selector!r}")

    async with open_run(wait_for) as call:
        await call("wait_for", selector="a.b", timeout=5)
        await call("wait_for", selector="a.b", timeout=5)
        await call("wait_for", selector="a.b", timeout=10)
        await call("wait_for", selector="a.b", timeout=8)
        assert executed == [5, 10]


async def test_polling_tools_are_exempt():
    executed = []

    @tool(polling=True)
    async def job_status(job: str) -> str:
        executed.append(job)
        if len(executed) < 10:
            raise ValueError(f"job {job} not found")
        return "done"

    async with open_run(job_status) as call:
        results = [await call("job_status", job="j-1") for _ in range(12)]
        assert len(executed) == 12 and results[-1].is_success


async def test_what_a_person_wants_tried_again_is_tried_again():
    browser, memory = Browser(), RunMemory()
    async with open_run(browser, memory=memory) as call:
        await call("browser", "extract", selector="a.social-count")
        assert memory.clear_failures("other") == 0 and memory.clear_failures("browser") == 1
        await call("browser", "extract", selector="a.social-count")
        assert len(browser.executed) == 2


async def test_a_tool_that_changes_starts_clean():
    def make(version: str, works: bool):
        @tool(name="search", version=version)
        async def search(query: str) -> str:
            if not works:
                raise RuntimeError("broken")
            return query

        return search

    async with open_run(make("1.0.0", False)) as call:
        await call("search", query="q")
        assert (await call("search", query="q")).error_type == "known_failure"
        call.engine.unregister("search")
        call.engine.register(make("1.0.1", True))
        assert (await call("search", query="q")).is_success


async def test_what_was_cancelled_or_not_let_in_or_needs_a_word_is_not_held_against_the_call():
    runs = []

    @tool
    async def pay(amount: int) -> str:
        runs.append(amount)
        if amount == 1:
            raise NeedsApproval("ask first")
        await asyncio.Event().wait()
        return "paid"

    async with ToolEngine() as engine:
        engine.register(pay)
        memory = RunMemory()
        call = Runner(engine, memory)
        for _ in range(2):
            await call("pay", amount=1)
            task = asyncio.create_task(call("pay", amount=2))
            await until(lambda: runs[-1] == 2)
            task.cancel()
            await asyncio.wait({task})
        assert runs == [1, 2, 1, 2] and memory.failures == []


async def test_what_worked_after_a_failure_is_told():
    browser = Browser()
    async with open_run(browser) as call:
        await call("browser", "extract", selector="a.social-count")
        await call("browser", "extract", selector="a.stars")
        again = await call("browser", "extract", selector="a.social-count")
        assert again.metadata["worked"][0]["selector"] == "a.stars" and "Arguments that worked: " in again.error


async def test_a_known_failure_has_its_record_and_its_event():
    browser, seen = Browser(), []
    async with ToolEngine() as engine:
        engine.register(browser)
        engine.subscribe(lambda event: seen.append(event.error_type))
        call = Runner(engine, RunMemory())
        for _ in range(2):
            await call("browser", "extract", selector="a.social-count")
        records = await engine.query_call_records(tool_name="browser")
        assert [record.error_type for record in records] == ["known_failure", "execution_error"]
        assert "known_failure" in seen


async def test_calls_that_tools_make_are_remembered_too():
    executed = []

    @tool
    async def inner(x: int) -> int:
        executed.append(x)
        raise ValueError("never works")

    from ferrule import ToolExecutionContext

    @tool
    async def outer(n: int, context: ToolExecutionContext) -> str:
        return (await context.call_tool("inner", {"x": 1})).error_type or ""

    async with open_run(inner, outer) as call:
        results = [await call("outer", n=n) for n in range(3)]
        assert [r.output["result"] for r in results] == ["execution_error", "known_failure", "known_failure"]
        assert executed == [1]


async def test_the_third_same_answer_is_pointed_out_and_then_given_from_the_record():
    browser, clock = Browser(), Clock()
    async with open_run(browser, memory=RunMemory(clock=clock)) as call:
        results = [await call("browser", "observe") for _ in range(5)]
        assert len(browser.executed) == 3
        assert ["note" in r.metadata for r in results[:3]] == [False, False, True]
        assert results[4].output == {"a.stars": "28"} and results[4].metadata["recalled"]
        await call("browser", "navigate", url="https://b.test")
        assert (await call("browser", "observe")).output == {"a.social-count": "7"}
        clock.now += 31
        await call("browser", "observe")
        assert len(browser.executed) == 6


async def test_answers_that_move_by_themselves_are_never_given_from_the_record():
    executed = []

    @tool(read_only=True)
    async def get_job_status(job: str) -> str:
        executed.append(job)
        return "running"

    async with open_run(get_job_status) as call:
        for _ in range(8):
            await call("get_job_status", job="j")
        assert len(executed) == 8


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (Retry("use another date"), FailureClass.VALIDATION),
        (Refuse("never"), FailureClass.PERMANENT),
        (Transient("later"), FailureClass.TRANSIENT),
        (NeedsApproval("ask"), FailureClass.AUTH),
        (FileNotFoundError("[Errno 2] No such file or directory: 'x'"), FailureClass.NOT_FOUND),
        (RuntimeError("Timeout 5000ms exceeded while waiting for selector 'a.b'"), FailureClass.NOT_FOUND),
        (RuntimeError("HTTP 429 Too Many Requests"), FailureClass.TRANSIENT),
        (RuntimeError("请求超时，请稍后再试"), FailureClass.TRANSIENT),
        (RuntimeError("401 Unauthorized"), FailureClass.AUTH),
        (RuntimeError("没有权限"), FailureClass.AUTH),
        (RuntimeError("找不到元素"), FailureClass.NOT_FOUND),
        (ConnectionResetError("Connection reset by peer"), FailureClass.UNKNOWN),  # it may have happened
        (ConnectionRefusedError("Connection refused"), FailureClass.TRANSIENT),
        (NotImplementedError("PDF is not supported"), FailureClass.PERMANENT),
        (ValueError("amount must be positive"), FailureClass.VALIDATION),
        (RuntimeError("boom"), FailureClass.UNKNOWN),
    ],
)
async def test_failures_are_sorted(raised, found):
    @tool
    async def fail() -> None:
        raise raised

    async with ToolEngine() as engine:
        engine.register(fail)
        result = await Runner(engine, RunMemory())("fail")
        assert result.metadata["failure_class"] == found.value


async def test_rules_and_policies_can_be_added():
    from dataclasses import replace

    def flaky(result):
        return FailureClass.TRANSIENT if "hiccup" in result.error else None

    patient = {FailureClass.TRANSIENT: replace(POLICIES[FailureClass.TRANSIENT], executions=5)}
    executed = []

    @tool
    async def fail() -> None:
        executed.append(1)
        raise RuntimeError("hiccup")

    async with open_run(fail, memory=RunMemory(classifier=FailureClassifier(flaky, policies=patient))) as call:
        for _ in range(9):
            await call("fail")
        assert len(executed) == 5


def test_a_context_comes_back_as_it_was():
    from ferrule import ToolExecutionResult

    context = ExecutionContext(task_description="count the stars")
    bad = ToolExecutionResult(is_success=False, tool_name="browser", error="Selector 'a.x' not found")
    good = ToolExecutionResult(is_success=True, tool_name="browser", output={"result": "28"})
    context.record("browser", "extract", {"selector": "a.x"}, bad)
    for _ in range(12):
        context.record("browser", "observe", {}, good)
    assert context.learned_patterns["browser"]["failed_selectors"] == ["a.x"]
    assert len(context.current_observations) == 10 and len(context.executed_steps) == 13
    assert context.count_failures("browser") == 1
    assert ExecutionContext.from_dict(context.to_dict(), {}) == context
