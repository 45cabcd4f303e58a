"""Traces, metrics and logs of a real `ferrule serve`."""

import json
import logging
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ferrule.telemetry.logs import configure_logs
from tests.server.serving import Project
from tests.support.processes import forwarded_python
from tests.telemetry.collector import run_collector

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytestmark = pytest.mark.integration

MCP_SERVER = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("mirror")

@server.tool()
def trace(context: Context) -> str:
    \"\"\"The trace that the client sent.\"\"\"
    return (context.request_context.meta or {}).get("traceparent", "")

server.run()
"""
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_one_trace_from_the_http_client_to_the_mcp_server(tmp_path: Path):
    with run_collector() as collector, forwarded_python() as python:
        project = Project(tmp_path, more=f'[telemetry]\nendpoint = "{collector.url}"\n')
        project.environment["OTEL_EXPORTER_OTLP_TIMEOUT"] = "60"
        (tmp_path / "mirror.py").write_text(MCP_SERVER)
        servers = {"mirror": {"command": python[0], "args": [*python[1:], str(tmp_path / "mirror.py")]}}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        with project.serve("--log-format", "json", "--log-level", "info") as server, server.client() as http:
            headers = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
            called = http.post("/v1/tools/mirror__trace/call", json={"arguments": {}}, headers=headers).json()
            asked = http.post("/v1/ask", json={"question": "add 2 and 3"}, headers=headers).json()
            http.post("/v1/tools/nothing-of-this-name/call", json={})
            metrics = http.get("/metrics").text
        log = server.log
    span = collector.find("execute_tool mirror")
    assert called["output"] == {"result": f"00-{TRACE_ID}-{span.span_id}-01"}, called
    assert collector.ancestors(span) == ["POST /v1/tools/{name}/call"]
    assert collector.find("invoke_workflow ferrule").trace_id == TRACE_ID
    assert collector.ancestors(collector.find("invoke_workflow ferrule")) == ["POST /v1/ask"]
    lines = [json.loads(line) for line in log.splitlines()]
    accessed = {(line["method"], line["route"], line["http_status"]) for line in lines if "http_status" in line}
    assert {("POST", "/v1/tools/{name}/call", 200), ("POST", "/v1/ask", 200)} <= accessed, accessed
    assert ("POST", "/v1/tools/{name}/call", 404) in accessed
    assert all(route not in ("/healthz", "/readyz") for _, route, _ in accessed)
    (line,) = [line for line in lines if line.get("call_id") == called["call_id"]]
    assert line["tool"] == "mirror" and line["status"] == "success" and line["principal"] == "user:local"
    assert [each["status"] for each in lines if each.get("run_id") == asked["run_id"] and "strategy" in each]
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }
    assert samples["ferrule_tool_calls_total", ("status", "success"), ("tool", "mirror")] == 1
    assert samples["ferrule_tool_calls_total", ("status", "tool_not_found"), ("tool", "other")] == 1
    assert samples["ferrule_tool_call_duration_seconds_count", ("tool", "mirror")] == 1
    assert {value for (name, *_), value in samples.items() if name == "ferrule_queue_depth"} == {0}


def test_a_collector_that_does_not_answer_does_not_stop_the_server(tmp_path: Path):
    project = Project(tmp_path, more='[telemetry]\nendpoint = "http://127.0.0.1:9"\n')
    with project.serve() as server, server.client() as http:
        result = http.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}}).json()
        assert result["output"] == {"result": 3}
        server.process.terminate()
        server.process.wait(120)
    assert server.process.returncode == -signal.SIGTERM  # which uvicorn raises again when it has ended


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_has_a_secret_of_an_address(log_format: str, tmp_path: Path):
    with Project(tmp_path).serve("--log-format", log_format, "--log-level", "debug") as server, server.client() as http:
        for path in ("v1/tools?token=frl_somebody-else", "v1/ask?api_key=sk-1234567890", "frl_in-a-path-0123456789"):
            http.get(path)
        http.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}})
    log = server.log
    assert "called" in log and not [text for text in ("somebody-else", "1234567890", "in-a-path") if text in log]


def test_lines_of_every_logger_are_redacted(capsys: pytest.CaptureFixture[str]):
    configure_logs("text", "debug")
    logging.getLogger("uvicorn").info("connection to postgresql://me:swordfish@host/db")
    logging.getLogger("ferrule.mcp").debug("Authorization: Bearer swordfish")
    assert "swordfish" not in (lines := capsys.readouterr().err) and lines.count("[redacted]") == 2
