"""Traces as a collector receives them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrule import ToolEngine, ToolEngineConfig, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.agent import Agent
from ferrule.config import TelemetrySection
from ferrule.http.client import trace_headers
from ferrule.http.guard import AddressGuard
from ferrule.orchestrator import Orchestrator
from ferrule.testing import ScriptedModel
from tests.support.http_servers import serve_http
from tests.workflow.plans import plan, step

pytest.importorskip("opentelemetry.sdk", reason="pip install 'ferrule[telemetry]'")

from ferrule.telemetry.tracing import Tracing, start_tracing
from tests.telemetry.collector import Collector, run_collector

pytestmark = pytest.mark.integration


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    with run_collector() as collector:
        yield collector


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(read_only=True)
async def add_twice(a: int, context: ToolExecutionContext) -> int:
    """Add a number to itself."""
    return int((await context.call_tool("add", {"a": a, "b": a})).output["result"])


@tool(read_only=True)
async def log_in(password: str, note: str) -> str:
    """Log in."""
    return f"in with {password}"


@tool
async def fail() -> str:
    """Always fails."""
    raise RuntimeError("no luck")


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def trace(library: UnifiedToolLibrary, collector: Collector, **options: object) -> Tracing:
    tracing = start_tracing(TelemetrySection.model_validate({"endpoint": collector.url, **options}), library.engine)
    assert tracing is not None
    return tracing


async def test_a_question_is_one_trace(collector: Collector):
    model = ScriptedModel([call("add_twice", a=2), "4"])
    async with UnifiedToolLibrary() as library:
        library.register(add, add_twice)
        tracing = trace(library, collector)
        result = await Orchestrator(library, model, strategy="loop").process_task("What is 2 + 2?")
        tracing.close()
    assert len({span.trace_id for span in collector.spans}) == 1
    question, nested = collector.find("invoke_workflow ferrule"), collector.find("execute_tool add")
    assert collector.ancestors(nested) == [
        "execute_tool add_twice",
        "invoke_agent orchestrator",
        "invoke_workflow ferrule",
    ]
    requests = [span for span in collector.spans if span.name == f"chat {model.name}"]
    assert [collector.ancestors(span)[0] for span in requests] == ["invoke_agent orchestrator"] * 2
    assert question.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert question.attributes["ferrule.run.id"] == result.run_id
    assert json.loads(question.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"] == "4"
    assert json.loads(nested.attributes["gen_ai.tool.call.arguments"]) == {"a": 2, "b": 2}
    assert json.loads(nested.attributes["gen_ai.tool.call.result"]) == {"result": 4}
    assert question.resource["service.name"] == "ferrule"


async def test_a_plan_has_spans_for_planning_and_its_agents(collector: Collector):
    model = ScriptedModel([plan(step(1, "add", a=1, b=2)), "3"])
    async with UnifiedToolLibrary() as library:
        library.register(add)
        tracing = trace(library, collector)
        await Orchestrator(library, model, strategy="plan").process_task("What is 1 + 2?")
        tracing.close()
    planning = next(s for s in collector.spans if s.name == f"chat {model.name}")
    assert collector.ancestors(planning) == ["invoke_agent planning", "plan planning", "invoke_workflow ferrule"]
    assert collector.ancestors(collector.find("execute_tool add")) == [
        "invoke_agent execution",
        "invoke_workflow ferrule",
    ]


async def test_failures_are_marked_and_secrets_are_not_sent(collector: Collector):
    async with UnifiedToolLibrary() as library:
        library.register(fail, log_in)
        tracing = trace(library, collector)
        await library.execute("fail")
        await library.execute("log_in", {"password": "hunter2-very-secret", "note": "n" * 20_000})
        await library.execute("log_in", {"password": 1})
        tracing.close()
    failed = collector.find("execute_tool fail")
    assert failed.is_error and failed.attributes["error.type"] == "execution_error"
    logins = [span for span in collector.spans if span.name == "execute_tool log_in"]
    assert logins[1].attributes["error.type"] == "validation_error"
    assert "hunter2" not in str(collector.spans)
    assert len(logins[0].attributes["gen_ai.tool.call.arguments"]) <= 8_193


async def test_contents_can_be_left_out_and_names_of_openinference_added(collector: Collector):
    async with UnifiedToolLibrary() as library:
        library.register(add)
        tracing = trace(library, collector, content=False, openinference=True)
        await Agent(library, ScriptedModel([call("add", a=41, b=1), "42"])).run("How much?")
        tracing.close()
    names = {name for span in collector.spans for name in span.attributes}
    assert not [name for name in names if name.endswith((".messages", ".arguments", ".result", ".value"))]
    assert "How much?" not in str(collector.spans)
    kinds = [span.attributes["openinference.span.kind"] for span in collector.spans]
    assert sorted(kinds) == ["AGENT", "LLM", "LLM", "TOOL"]
    assert collector.find("execute_tool add").attributes["tool.name"] == "add"


async def test_openinference_has_values_and_tokens(collector: Collector):
    async with UnifiedToolLibrary() as library:
        library.register(add)
        tracing = trace(library, collector, openinference=True)
        await Agent(library, ScriptedModel([call("add", a=41, b=1), "42"])).run("How much?")
        tracing.close()
    agent = collector.find("invoke_agent agent").attributes
    assert (agent["input.value"], agent["output.value"]) == ("How much?", "42")
    assert agent["llm.token_count.total"] == agent["gen_ai.usage.input_tokens"] + agent["gen_ai.usage.output_tokens"]


async def test_tools_that_make_http_requests_pass_the_trace_on(collector: Collector, tmp_path: Path):
    async with serve_http(lambda _: (200, {}, b"{}")) as server:
        (tmp_path / "weather.yaml").write_text(
            f'name: weather\ndescription: The weather.\nentry: {{type: external, url: "{server.url}"}}\n'
        )
        engine = ToolEngine(
            ToolEngineConfig(tools_directory=str(tmp_path)), address_guard=AddressGuard(allow_private=True)
        )
        async with UnifiedToolLibrary(engine=engine) as library:
            tracing = trace(library, collector)
            result = await library.execute("weather")
            tracing.close()
        assert result.is_success, result.error
        (request,) = server.requests
    span = collector.find("execute_tool weather")
    assert request.headers["traceparent"].startswith(f"00-{span.trace_id}-{span.span_id}-")
    assert trace_headers.get() == {}


async def test_nothing_is_made_without_configuration(monkeypatch: pytest.MonkeyPatch, collector: Collector):
    async with UnifiedToolLibrary() as library:
        assert start_tracing(TelemetrySection(), library.engine) is None
        assert not library.engine.events.has_subscribers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "from-variable")
        library.register(add)
        tracing = start_tracing(TelemetrySection(), library.engine)
        assert tracing is not None
        await library.execute("add", {"a": 1, "b": 2})
        tracing.close()
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        assert start_tracing(TelemetrySection(), library.engine) is None
    assert collector.find("execute_tool add").resource["service.name"] == "from-variable"
