"""The library's methods that know what a run has lived through."""

from ferrule import UnifiedToolLibrary, tool
from ferrule.memory import ExecutionContext
from tests.memory.runs import Browser
from tests.support.engines import library_with


async def test_a_call_with_a_context_is_not_repeated():
    browser = Browser()
    async with library_with(browser) as library:
        context = ExecutionContext(task_description="count the stars")
        for _ in range(3):
            result = await library.execute_tool_with_context(
                tool_id="browser",
                action="extract",
                parameters={"selector": "a.social-count"},
                execution_context=context,
            )
        assert result.error_type == "known_failure" and len(browser.executed) == 1
        assert context.executed_steps == []  # whoever runs the loop keeps the book


async def test_a_context_made_by_hand_brings_its_failures_with_it():
    browser = Browser()
    async with library_with(browser) as library:
        attempt = {"tool_id": "browser", "action": "extract", "parameters": {"selector": "a.x"}, "error": "not found"}
        context = ExecutionContext(task_description="count", failed_attempts=[attempt, {"tool_id": "gone"}])
        result = await library.execute_tool_with_context("browser", "extract", {"selector": "a.x"}, context)
        assert result.error_type == "known_failure" and browser.executed == []


async def test_parameters_are_adjusted_where_the_spec_allows_it():
    asked = []

    @tool(read_only=True, metadata={"auto_adjust": True})
    async def scrape(selector: str) -> str:
        asked.append(selector)
        if selector == "a.social-count":
            raise ValueError(f"Selector {selector!r} not found")
        return "28"

    async with library_with(scrape) as library:
        page = '<a id="stars-counter" class="count social">28</a>'
        context = ExecutionContext(task_description="count", current_observations=[page])
        first = await library.execute_tool_with_context("scrape", None, {"selector": "a.social-count"}, context)
        second = await library.execute_tool_with_context("scrape", None, {"selector": "a.social-count"}, context)
        assert not first.is_success and second.is_success
        assert asked[0] == "a.social-count" and asked[1] != "a.social-count"


async def test_without_a_context_it_is_an_ordinary_call():
    async with UnifiedToolLibrary() as library:
        result = await library.execute_tool_with_context("calculator", "calculator", {"expression": "1+1"})
        assert result.is_success


async def test_time_outs_are_doubled_up_to_a_minute():
    @tool
    async def fetch(url: str, timeout: float = 10) -> str:
        return url

    async with library_with(fetch) as library:
        for given, suggested in ((10, 20), (40, 60)):
            adjusted = await library.suggest_parameter_adjustments(
                tool_id="fetch",
                action="fetch",
                failed_parameters={"url": "u", "timeout": given},
                error_message="the request timed out",
            )
            assert adjusted == {"url": "u", "timeout": suggested}
        unknown = await library.suggest_parameter_adjustments("nothing", "x", {"a": 1}, "boom")
        assert unknown == {"a": 1}


async def test_alternatives_have_the_same_tags_and_have_not_failed():
    @tool(tags=["search", "web"])
    async def bing(query: str) -> str:
        """Search the web."""
        return query

    @tool(tags=["search", "web"])
    async def brave(query: str) -> str:
        """Search the web."""
        return query

    @tool(tags=["search", "web"])
    async def yahoo(query: str) -> str:
        """Search the web."""
        return query

    async with library_with(bing, brave, yahoo) as library:
        failed = [{"tool_id": name, "action": name, "parameters": {"query": "x"}} for name in ("bing", "yahoo")]
        context = ExecutionContext(task_description="search the web", failed_attempts=failed)
        found = await library.get_alternative_tools(
            failed_tool_id="bing", task_context="search the web", execution_context=context
        )
        names = [spec.tool_id for spec in found]
        assert names[0] == "brave" and not {"bing", "yahoo"} & set(names)


async def test_failure_patterns_of_a_tool_tell_what_failed_and_what_cured_it():
    async with library_with(Browser()) as library:
        context = ExecutionContext(task_description="count")
        for selector in ("a.social-count", "a.stars"):
            await library.execute_tool_with_context("browser", "extract", {"selector": selector}, context)
        patterns = await library.get_tool_failure_patterns("browser", context)
        assert patterns["failed_selectors"] == ["a.social-count"] and patterns["failed_actions"] == ["extract"]
        assert patterns["patterns"][0]["what_helped"] == "another value of selector"
        assert (await library.get_tool_failure_patterns("calculator"))["patterns"] == []
