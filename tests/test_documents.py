"""Names and behaviour of the design documents, item by item; their code samples are in `test_design_samples.py`."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ferrule
from ferrule import (
    ExecutionContext,
    ExtendedToolSpec,
    FunctionToolSpec,
    MCPServerSpec,
    ModelReply,
    Orchestrator,
    ToolCandidate,
    ToolCapability,
    ToolEngine,
    ToolEngineConfig,
    ToolEngineEvent,
    ToolEngineEventType,
    ToolExecutionContext,
    ToolRegistry,
    ToolSpec,
    ToolType,
    UnifiedToolLibrary,
    ValidationResult,
    documents,
    tool,
)
from ferrule.catalog.descriptions import DescriptionEngine
from ferrule.models.offline import OfflineModel
from ferrule.testing import ScriptedModel
from ferrule.workflow import (
    ExecutionAgent,
    Plan,
    PlanningAgent,
    SimpleWorkflow,
    StepContext,
    StepResult,
    VerificationAgent,
)
from ferrule.workflow.plan import parse_plan


class Lookup:
    """A tool object as 000 and 003 have them."""

    name = "lookup"
    description = "Look something up."

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def execute(self, query: str) -> dict[str, Any]:
        self.queries.append(query)
        return {"success": True, "result": f"about {query}"}


# 000 §1 and §8: tools


async def test_a_library_has_the_bundled_tools_and_those_that_are_not_set_up_say_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    library = UnifiedToolLibrary()
    await library.initialize()
    usable = {spec.tool_id for spec in await library.get_all_tools()}
    missing = await library.get_unavailable_tools()
    result = await library.execute_tool("search_web", None, {"query": "ferrule"})
    await library.aclose()
    assert {"calculator", "get_time", "http_request", "python_executor", "web_scraper", "browser_navigator"} <= usable
    assert {"search_web", "file_processor", "data_analyzer", "database_query", "api_caller"} <= missing.keys()
    assert not result.success and "it needs a search provider: set [tools.search_web]" in str(result.error)


async def test_a_library_can_be_without_the_bundled_tools():
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        assert await library.get_all_tools() == []


@pytest.mark.parametrize("early", [True, False])
async def test_a_tool_that_a_program_registers_takes_the_place_of_a_bundled_one(early: bool):
    @tool(read_only=True)
    async def summarize(text: str) -> str:
        """Summarize a text."""
        return "mine"

    library = UnifiedToolLibrary()
    if early:
        library.register(summarize)
    async with library:
        if not early:
            library.register(summarize)
        result = await library.execute_tool("summarize", None, {"text": "x"})
        assert len(library.hub.find_by_name("summarize")) == 1
    assert result.output == {"result": "mine"} and result.metadata["_meta"]["synthesized"] is False


async def test_a_tool_object_is_registered_by_its_own_name():
    lookup = Lookup()
    async with UnifiedToolLibrary() as library:
        [spec] = library.register(lookup)
        result = await library.execute_tool("lookup", None, {"query": "ferrule"})
        by_class = library.register(type("Other", (Lookup,), {"name": "other"}))[0]
        assert (await library.execute_tool("other", None, {"query": "x"})).output == {"result": "about x"}
    assert (spec.tool_id, spec.description, by_class.tool_id) == ("lookup", "Look something up.", "other")
    assert result.output == {"result": "about ferrule"} and lookup.queries == ["ferrule"]


async def test_the_parameters_that_a_tool_object_declares_are_its_schema():
    class Open:
        name, description = "open_page", "Open a page."
        parameters = {"url": {"type": "string", "description": "the address", "required": True}}

        async def execute(self, **arguments: Any) -> Any:
            return arguments

    async with UnifiedToolLibrary() as library:
        [spec] = library.register(Open())
        assert (await library.execute_tool("open_page", None, {"url": "a"})).output == {"url": "a"}
        assert (await library.execute_tool("open_page", None, {})).error_type == "validation_error"
    assert spec.capabilities[0].schema["required"] == ["url"]


CLASS_OF_TOOL = """\
class Greeter:
    name = "greet"
    description = "Greet somebody."
    async def execute(self, who: str) -> str:
        return f"Hello {who}"
"""


async def test_a_plain_class_in_the_folder_of_tools_is_a_tool_or_a_reported_problem(tmp_path: Path):
    (tmp_path / "greeter.py").write_text(CLASS_OF_TOOL)
    (tmp_path / "client.py").write_text("\nclass Client:\n    def get(self): ...\n")
    (tmp_path / "helper.py").write_text("class Helper:\n    def text(self):\n        return 'helped'\n")
    (tmp_path / "user.py").write_text(
        "from ferrule import tool\nfrom helper import Helper\n\n@tool\nasync def help() -> str:\n"
        "    return Helper().text()\n"
    )
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path))) as engine:
        assert (await engine.execute("greet", {"who": "Wang"})).output == {"result": "Hello Wang"}
        assert (await engine.execute("help")).output == {"result": "helped"}
        [error] = engine.load_errors
    assert "client.py:2" in str(error) and "the class 'Client' is not a tool" in str(error)


async def test_a_class_below_the_folder_that_a_spec_may_name_is_no_problem(tmp_path: Path):
    (tmp_path / "browser").mkdir()
    (tmp_path / "browser" / "navigator.py").write_text("class BrowserNavigator:\n    def navigate(self, url): ...\n")
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path))) as engine:
        assert engine.load_errors == ()


def test_a_spec_of_ones_own_is_frozen_as_all_specs_are():
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @dataclass
        class Thawed(ToolSpec):  # type: ignore[misc]
            endpoint: str = ""

    @dataclass(frozen=True)
    class GraphQLSpec(ToolSpec):
        endpoint: str = ""

    assert GraphQLSpec("graph", "graph", "A graph.", endpoint="https://a.test").endpoint == "https://a.test"


async def test_an_executor_of_003_calls_the_tools_of_its_collection():
    executor = documents.ToolExecutor()
    executor.set_tool_collection([Lookup()])
    assert (await executor.execute("lookup", {"query": "stars"})).output == {"result": "about stars"}
    assert (await executor.execute("nothing")).error_type == "tool_not_found"


def test_a_subclass_of_the_executor_makes_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class GraphQLExecutor(documents.ToolExecutor):
        async def execute(self, tool_name: Any, params: Any = None, /) -> Any:
            return "done"

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    GraphQLExecutor()
    assert list(tmp_path.iterdir()) == []


async def test_an_executor_without_a_collection_has_no_tools():
    assert (await documents.ToolExecutor().execute("lookup")).error_type == "tool_not_found"


# 000 §3 and §7: the hub


async def test_the_hub_takes_a_text_for_tools_with_one_text_parameter():
    async with UnifiedToolLibrary() as library:
        library.register(Lookup())
        assert (await library.hub.execute("calculator", "6*7")).output == {"result": 42}
        assert (await library.hub.execute("lookup", "ferrule")).output == {"result": "about ferrule"}
        assert (await library.hub.execute("missing", "ferrule")).error_type == "tool_not_found"

        @tool
        async def move(source: str, target: str) -> str:
            """Move something."""
            return source + target

        library.register(move)
        refused = await library.hub.execute("move", "a")
    assert refused.error_type == "validation_error" and "must be an object" in str(refused.error)


async def test_a_candidate_can_be_made_by_hand_and_registered():
    candidate = ToolCandidate("finder", "skills", Lookup(), 1, {"capabilities": ["research"]})  # type: ignore[arg-type]
    async with UnifiedToolLibrary() as library:
        library.hub.register(candidate)
        [by_name] = library.hub.find_by_name("finder")
        assert (by_name.source, by_name.priority, by_name.meta) == ("skills", 1, {"capabilities": ["research"]})
        by_tag = await library.hub.execute_by_capability("research", "ferrule")
    assert by_tag.output == {"result": "about ferrule"}
    assert by_tag.metadata["answered_by"] == ["finder (skills)"]


# 001 §4 to §7: specs, the library, descriptions


def test_the_fields_of_specs_can_be_given_by_position_in_the_order_of_the_document():
    capability = ToolCapability("query", "Query it.", {"sql": {"type": "string"}}, [{"sql": "SELECT 1"}], "database")
    common = ("id", "name", "description", ToolType.FUNCTION, [capability], ["tag"], "2.0.0", False, {"key": 1})
    for spec in (
        ToolSpec(*common),
        FunctionToolSpec(*common, "module", "Class", {"a": 1}),
        MCPServerSpec(*common, {"b": 2}, "ws://localhost", {"timeout": 30}),
        ExtendedToolSpec(*common, "web", "browser", 3, ["other"]),
    ):
        assert (spec.tool_id, spec.name, spec.description, spec.tool_type, spec.capabilities) == common[:5]
        assert (spec.tags, spec.version, spec.enabled, spec.metadata) == common[5:]
    assert ValidationResult(True, [], {"a": 1}).validated_params == {"a": 1}
    function = FunctionToolSpec(*common, "module", "Class", {"a": 1})
    assert (function.module_path, function.class_name, function.init_params) == ("module", "Class", {"a": 1})
    server = MCPServerSpec(*common, {"b": 2}, "ws://localhost", {"timeout": 30})
    assert (server.server_config, server.endpoint, server.connection_params["timeout"]) == (
        {"b": 2},
        "ws://localhost",
        30,
    )
    extended = ExtendedToolSpec(*common, "web", "browser", 3, ["other"])
    assert (extended.category, extended.subcategory, extended.priority, extended.dependencies) == (
        "web",
        "browser",
        3,
        ["other"],
    )


async def test_tools_are_described_in_the_language_of_the_library_or_of_one_request():
    async with UnifiedToolLibrary(language="zh") as library, UnifiedToolLibrary() as other:
        assert "工具: calculator" in await library.get_tool_description_for_agent("calculator")
        assert "Tool: calculator" in await library.get_tool_description_for_agent("calculator", language="en")
        assert "工具: calculator" in await other.get_all_tools_description_for_agent(language="zh")
        assert "Tool: calculator" in await other.get_all_tools_description_for_agent()


async def test_the_registry_is_read_as_the_description_engine_of_the_document_reads_it():
    async with UnifiedToolLibrary() as library:
        registry: ToolRegistry = DescriptionEngine(library.engine.registry).tool_registry
        calculator = await registry.get_tool("calculator")
        assert calculator is not None and calculator.name == "calculator"
        assert calculator in await registry.get_all_tools()
        assert await registry.get_tool("nothing") is None


class Page:
    """A page with one element."""

    def __init__(self) -> None:
        self.clicks: list[tuple[str, int]] = []

    async def click(self, selector: str, timeout: int = 10) -> str:
        """Click on an element."""
        self.clicks.append((selector, timeout))
        return "clicked"


async def test_patterns_that_a_caller_has_put_into_a_context_are_used():
    page = Page()
    patterns = {"Page": {"failed_selectors": ["a.social-count"]}}
    context = ExecutionContext(task_description="Click", learned_patterns=patterns)
    async with UnifiedToolLibrary() as library:
        library.register(page)
        refused = await library.execute_tool_with_context("Page", "click", {"selector": "a.social-count"}, context)
        clicked = await library.execute_tool_with_context("Page", "click", {"selector": "a.stars"}, context)
        assert (await library.get_tool_failure_patterns("Page"))["patterns"] == []
    assert refused.error_type == "known_failure" and "Try instead" in str(refused.error)
    assert clicked.success and page.clicks == [("a.stars", 10)]


async def test_a_tool_that_allows_it_gets_adjusted_parameters_by_the_patterns_of_a_context():
    page = Page()
    patterns = {"Page": {"failed_selectors": ["a.social-count"], "error_patterns": ["Timeout after 10 s"]}}
    context = ExecutionContext(task_description="Click", learned_patterns=patterns)
    async with UnifiedToolLibrary() as library:
        adjustable = tool(metadata={"auto_adjust": True})(type("Page", (Page,), {}))
        library.register(adjustable)
        for parameters in ({"selector": "a.social-count"}, {"selector": "a.stars", "timeout": 10}):
            assert (await library.execute_tool_with_context("Page", "click", parameters, context)).success
        records = await library.engine.query_call_records()
    assert page.clicks == [] and records[0].params == {"selector": "a.stars", "timeout": 20}
    assert records[1].params["selector"] != "a.social-count"


async def test_the_analytics_service_records_and_counts_failures():
    async with UnifiedToolLibrary() as library:
        library.register(Page())
        failure = {"tool_id": "Page", "action": "click", "parameters": {"selector": "a.x"}}
        failure |= {"error_message": "selector 'a.x' not found", "error_type": "execution_error", "timestamp": "now"}
        await library.analytics_service.record_failure_pattern(failure)
        patterns = await library.analytics_service.get_tool_failure_patterns("Page")
    assert [(each["action"], each["failure_class"]) for each in patterns["patterns"]] == [("click", "not_found")]


# 003: events and results


async def test_the_event_after_a_call_has_the_call_and_the_result_has_the_ids_of_the_call():
    events: list[ToolEngineEvent] = []
    context = ToolExecutionContext(tool_call_id="call_123")
    async with ToolEngine() as engine:
        engine.subscribe(events.append, {ToolEngineEventType.AFTER_TOOL_CALL})
        result = await engine.execute("echo", {"message": "x"}, context)
        await engine.execute("nothing", {"text": "x"})
    data = events[0].data
    assert (data["params"], data["context"].tool_call_id, data["result"].success) == (
        {"message": "x"},
        "call_123",
        True,
    )
    assert (result.name, result.tool_call_id, result.error) == ("echo", "call_123", None)
    assert events[1].data["params"] == {"text": "[not recorded]"}


# 000 §2 to §4 and 004: plans


def step(number: int, tool_type: str = "none", **fields: Any) -> dict[str, Any]:
    return {"id": number, "description": f"step {number}", "tool_type": tool_type, "complexity": 1, **fields}


async def test_a_calculation_without_input_falls_back_to_reasoning():
    model = ScriptedModel([ModelReply(text="no call"), "It is about 7."])
    async with UnifiedToolLibrary() as library:
        agent = ExecutionAgent(library, model)
        result = await agent.execute_step(step(1, "calculator"), {"question": "How many days has a week?"})
        assert await library.engine.query_call_records() == []
    assert result.success and result.result == "It is about 7." and result.attempts[0].level == "reasoning"


async def test_steps_and_contexts_may_be_dictionaries():
    async with UnifiedToolLibrary() as library:
        agent = ExecutionAgent(library, ScriptedModel(["seven"]))
        context: dict[str, Any] = {"question": "What is 3 + 4, in words?", "step_results": []}
        first = await agent.execute_step(step(1, "calculator", parameters={"expression": "3+4"}), context)
        context["step_results"].append({"step_id": 1, "success": first["success"], "result": first["result"]})
        second = await agent.execute_step(step(2), context)
        verification = await VerificationAgent().verify_result({"step_id": 2, "success": True, "result": ""}, context)
    assert (first["success"], first["result"], second["result"]) == (True, "7", "seven")
    assert not verification.verified


@pytest.mark.parametrize(
    ("tool_type", "expected", "text", "verified"),
    [
        ("get_time", "", "25:99", False),
        ("none", "time", "25:99", False),
        ("none", "time", "23:59", True),
        ("none", "", "The score was 88:79.", True),
    ],
)
async def test_a_time_that_does_not_exist_is_no_time(tool_type: str, expected: str, text: str, verified: bool):
    result = StepResult(step_id=1, description="x", tool_type=tool_type, success=True, result=text, output=text)
    verification = await VerificationAgent().verify_result(result, StepContext(question="x"), expected)
    assert verification.verified is verified


@pytest.mark.parametrize("dependencies", [None, []])
async def test_reasoning_waits_for_all_earlier_steps_unless_the_plan_says_which_it_needs(dependencies: Any):
    @tool(read_only=True)
    async def price(item: str) -> str:
        """Look up a price."""
        if item == "gold":
            raise ValueError("gold has no price")
        return f"the {item} costs 3"

    fields = {} if dependencies is None else {"dependencies": dependencies}
    steps = [
        step(1, "price", parameters={"item": "tea"}, dependencies=[]),
        step(2, "price", parameters={"item": "gold"}, dependencies=[]),
        step(3, **fields),
    ]
    plan = parse_plan({"steps": steps}, {"price"})
    assert plan is not None and Plan.from_dict(plan.to_dict()) == plan
    assert plan.parallel_groups == (((1, 2), (3,)) if dependencies is None else ((1, 2, 3),))
    model = ScriptedModel(
        [lambda request: json.dumps({"steps": steps}) if request.answer_schema else "done"], loop=True
    )
    async with UnifiedToolLibrary() as library:
        library.register(price)
        result = await SimpleWorkflow(library, model).run("What do tea and gold cost?")
    reasoning, *_ = [r for r in model.requests if r.messages[-1]["content"] == "step 3"]
    has_result = "the tea costs 3" in str(reasoning.messages)
    assert result.step_results[2].success and has_result is (dependencies is None)


async def test_a_planner_is_told_the_available_tools_and_hints_at_others_in_the_language_of_the_question():
    def make(name: str) -> Any:
        async def run(text: str) -> str:
            return text

        return tool(name=name, description=f"{name} something")(run)

    model = ScriptedModel([json.dumps({"steps": [step(1)]})], loop=True)
    async with UnifiedToolLibrary() as library:
        library.register(*(make(f"tool_{number}") for number in range(30)))
        planner = PlanningAgent(library, model)
        await planner.decompose_task("今天星期几？")
        planner.set_available_tools(["tool_1", "calculator"])
        await planner.decompose_task("Which day is it?")
    chinese, english = (str(request.messages[0]["content"]) for request in model.requests)
    assert re.search(r"（还有 \d+ 个其他工具，可通过工具名称直接调用）", chinese)
    assert "tool_1(" in english and "tool_2" not in english and "calculator" in english


async def test_the_result_of_a_workflow_has_the_names_of_the_documents():
    plan = json.dumps({"steps": [step(1, "calculator", parameters={"expression": "6*7"})]})
    async with UnifiedToolLibrary() as library, Orchestrator(library, ScriptedModel([plan] * 2)) as orchestrator:
        result = await orchestrator.workflow.run("What is 6 * 7?", {})
        answer = await orchestrator.process_task("What is 6 * 7, please?", strategy="plan")
    assert (result.final_answer, result["final_answer"], result.current_step) == ("42", "42", 1)
    assert result.task_plan is result.plan and result.step_results[0]["success"]
    assert answer["answer"] == answer.final_answer == answer["final_answer"] == "42"


# The names of the documents


def test_the_names_of_the_documents_stand_for_ours():
    assert documents.SuperMagic is ferrule.Agent and documents.UnifiedDispatcher is ToolEngine
    assert documents.ToolResult is documents.ExecutionResult is ferrule.ToolExecutionResult
    assert documents.AgentContext is ToolExecutionContext
    assert issubclass(documents.ContextAwareReasoningRuntime, documents.ReasoningRuntime)


async def test_the_executors_of_the_document_can_be_registered_under_other_names():
    async with ToolEngine() as engine:
        engine.register_executor("mine", documents.EchoExecutor())
        engine.register_executor("sums", documents.CalculatorExecutor())
        engine.register_executor("web", documents.HTTPExecutor(engine.address_guard))
        spec = ToolSpec("say", capabilities=[ToolCapability("say", "", {"message": {"type": "string"}})])
        engine.register(ferrule.Tool(spec=spec, handler="mine"))
        assert (await engine.execute("say", {"message": "x"})).output == {"message": "x"}


async def test_a_base_tool_is_registered_with_an_agent_and_its_resources_are_listed():
    class Browser(documents.BaseTool):
        name, description = "browser", "Open a page."
        is_clean = False

        async def execute(self, url: str) -> str:
            return f"page of {url}"

        async def cleanup(self) -> None:
            self.is_clean = True

    browser = Browser()
    async with UnifiedToolLibrary() as library:
        model = ScriptedModel([{"name": "browser", "arguments": {"url": "a"}}, "done"])
        agent = documents.SuperMagic(library, model)
        agent.register_tools(browser, Lookup())
        assert agent.active_resources["browser"] is browser and "lookup" not in agent.active_resources
        answer = await agent.run("Open a.")
        assert answer.steps[0].text == "page of a" and browser.is_clean


async def test_unknown_names_in_the_configuration_of_an_agent_are_an_error():
    async with UnifiedToolLibrary() as library:
        agent = ferrule.Agent(library, ScriptedModel(["done"]))
        agent.load_tools_by_config({"calculator", "echo", "get_*"})
        with pytest.raises(ferrule.SetupError, match="There is no tool 'calculater'. Did you mean 'calculator'"):
            agent.load_tools_by_config({"calculater"})


@pytest.mark.parametrize("make", [lambda: ScriptedModel(["fine"]), OfflineModel])
async def test_models_take_a_text_as_a_request(make: Any):
    reply = await make().generate("How are you?")
    assert isinstance(reply, ModelReply) and reply.text


async def test_results_plans_and_actions_are_read_as_the_documents_write_them():
    async with UnifiedToolLibrary() as library:
        library.register(Lookup())
        result = await library.hub.execute("lookup", {"query": "stars"})
        again = await library.execute_tool("lookup", "execute", {"query": "stars"})
    assert result["success"] and again["success"] and result["tool_name"] == "lookup"
    with pytest.raises(KeyError):
        result["nothing"]
    made = parse_plan({"steps": [{"id": 1, "description": "a"}]}, ())
    assert made is not None and [step.id for step in made["steps"]] == [1] and made[1].description == "a"
    with pytest.raises(KeyError, match="A plan has no 'step'. Did you mean 'steps'?"):
        made["step"]


async def test_a_subclass_of_super_magic_registers_its_tools_in_register_tools():
    class Own(documents.SuperMagic):
        def register_tools(self, *tools: Any) -> None:
            for each in tools or (Lookup(),):
                self.register_tool(each)

    agent = Own([], ScriptedModel([{"name": "lookup", "arguments": {"query": "stars"}}, "Found."]))
    agent.register_tools()
    answer = await agent.run("Look it up.")
    assert [step.text for step in answer.steps] == ["about stars"]


async def test_messages_name_what_is_missing():
    class Nameless:
        async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
            return ModelReply(text="hi")

    with pytest.raises(ferrule.SetupError, match="has no name: give it the attribute `name`"):
        ferrule.Agent([], Nameless())  # type: ignore[arg-type]
    missing = await ToolEngine().execute("echo", {"message": "x"})
    assert missing.error is not None and "The engine was not started" in missing.error


async def test_the_content_of_search_hits_is_in_the_result_of_a_step():
    @tool(tags=["search"], read_only=True)
    async def search_web(query: str) -> list[dict[str, str]]:
        """Search the web."""
        return [{"title": "Star", "url": "https://example.org", "content": "A star is a ball of gas. " * 50}]

    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(search_web)
        step = {"id": 1, "description": "search", "tool_type": "search_web", "parameters": {"query": "star"}}
        result = await ExecutionAgent(library, ScriptedModel([])).execute_step(step, {"question": "What is a star?"})
    assert result.result.startswith("- Star: A star is a ball of gas.") and len(result.result) < 250


async def test_a_tool_of_a_plan_answers_in_the_language_of_the_question():
    steps = [{"id": 1, "description": "time", "tool_type": "get_time", "parameters": {"timezone": "Asia/Tokyo"}}]
    async with UnifiedToolLibrary() as library:
        flow = SimpleWorkflow(library, ScriptedModel([json.dumps({"steps": steps})]))
        assert (await flow.run("东京现在几点？")).answer.startswith("现在是")


async def test_the_handler_of_a_yaml_tool_may_be_a_registered_executor(tmp_path: Path):
    entry = "entry: {type: custom, handler: myh}"
    parameters = "parameters: [{name: x, type: string, required: true, description: text}]"
    (tmp_path / "own.yaml").write_text(f"name: own\ndescription: Do it.\n{entry}\n{parameters}\n")

    class Own:
        async def execute(self, invocation: Any) -> str:
            return f"own {invocation.params['x']}"

    engine = ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path), builtin_tools=False))
    engine.register_executor("myh", Own())
    async with UnifiedToolLibrary(engine=engine) as library:
        assert (await library.execute_tool("own", {"x": "a"})).output == {"result": "own a"}


async def test_chinese_flows_have_no_english_frame():
    @tool(read_only=True)
    async def lookup(query: str) -> str:
        """Look something up."""
        raise RuntimeError("关闭了")

    steps = [{"id": 1, "description": "查询资料", "tool_type": "lookup", "parameters": {"query": "星"}}]
    model = ScriptedModel([json.dumps({"steps": steps}), "不知道", json.dumps({"steps": []}), "无"])
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        library.register(lookup)
        answer = await SimpleWorkflow(library, model).run("请查询星星的资料，谢谢")
        description = library.descriptions.describe((await library.get_all_tools())[0], language="zh")
    texts = [str(message["content"]) for request in model.requests for message in request.messages]
    assert any("问题：请查询星星的资料" in text for text in texts) and not any("Question:" in text for text in texts)
    assert any("失败（" in text for text in texts) and not any("failed (" in text for text in texts)
    assert answer.errors and answer.errors[0].startswith("第 1 步：")
    assert "使用场景: Look something up." in description and "当需要look" not in description
