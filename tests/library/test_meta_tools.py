from ferrule import Image, Policy, Refuse, Rule, ToolEngine, ToolExecutionContext
from ferrule.catalog.search import RegistryIndex
from ferrule.library.meta_tools import make_meta_tools
from tests.catalog.sample_tools import forecast


def with_meta_tools(engine: ToolEngine) -> ToolEngine:
    engine.registry.add(*make_meta_tools(RegistryIndex(engine.registry), engine))
    return engine


async def test_a_model_finds_a_tool_by_what_it_does_with_all_it_needs_to_call_it():
    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(forecast)
        hits = (await engine.execute("search_tools", {"query": "weather"})).output["result"]
        assert [tool["name"] for tool in hits] == ["forecast"]
        assert hits[0]["description"].startswith("Tell the weather")
        assert hits[0]["parameters"]["required"] == ["city"]


async def test_actions_are_found_one_by_one_and_no_more_than_asked_for():
    class Notes:
        """Keep notes."""

        async def add(self, text: str) -> str:
            """Add a note."""
            return text

        async def drop(self, text: str) -> str:
            """Drop a note."""
            return text

    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(Notes())
        for limit, names in ((10, {"Notes__add", "Notes__drop"}), (1, {"Notes__add"}), (0, {"Notes__add"})):
            hits = await engine.execute("search_tools", {"query": "add a note", "limit": limit})
            assert {tool["name"] for tool in hits.output["result"]} == names


async def test_the_two_do_not_find_each_other():
    async with with_meta_tools(ToolEngine()) as engine:
        hits = await engine.execute("search_tools", {"query": "search_tools call_tool find tools"})
        assert not {tool["name"] for tool in hits.output["result"]} & {"search_tools", "call_tool"}


async def test_a_call_goes_through_the_engine_and_leaves_a_record_of_its_own():
    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(forecast)
        result = await engine.execute("call_tool", {"name": "forecast", "arguments": {"city": "Paris", "days": "1"}})
        assert result.output == {"city": "Paris", "unit": "C", "days": "1"}
        [inner] = await engine.store.query_call_records(tool_name="forecast")
        assert (inner.parent_id, inner.params["city"]) == (result.call_id, "Paris")


async def test_an_inner_failure_is_the_outer_one():
    async def never() -> None:
        raise Refuse("Not on Sundays.")

    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(forecast, never)
        wrong = await engine.execute("call_tool", {"name": "forecast", "arguments": {"town": "Paris"}})
        assert wrong.error_type == "validation_error"
        assert sorted(error["path"] for error in wrong.validation_errors) == ["city", "town"]
        unknown = await engine.execute("call_tool", {"name": "forcast"})
        assert unknown.error_type == "tool_not_found" and "Did you mean 'forecast'" in str(unknown.error)
        refused = await engine.execute("call_tool", {"name": "never"})
        assert (refused.error_type, refused.error) == ("permission_denied", "Not on Sundays.")
        assert refused.metadata["advice"] == "give_up"


async def test_images_pass_through():
    async def draw() -> Image:
        return Image(data=b"png")

    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(draw)
        result = await engine.execute("call_tool", {"name": "draw"})
        assert result.content == (Image(data=b"png"),)


async def test_what_the_caller_lets_be_called_is_no_more_through_it():
    policy = Policy(rules=[Rule(verdict="ask", tool="forecast"), Rule(verdict="deny", tool="echo")])
    async with with_meta_tools(ToolEngine()) as engine:
        engine.register(forecast)
        forecast_call = {"name": "forecast", "arguments": {"city": "Paris"}}
        context = ToolExecutionContext(policy=policy, conversation_id="c")
        pending = await engine.execute("call_tool", forecast_call, context)
        assert pending.error_type == "approval_required"
        await engine.approvals.record_decision(pending.metadata["approval_id"], True)
        assert (await engine.execute("call_tool", forecast_call, context)).is_success
        assert (await engine.execute("call_tool", forecast_call, context)).error_type == "approval_required"
        denied = await engine.execute("call_tool", {"name": "echo"}, context)
        assert denied.error == "The policy does not allow 'echo'."
        names = [
            each["name"] for each in (await engine.execute("search_tools", {"query": "echo"}, context)).output["result"]
        ]
        assert "echo" not in names
