"""The code samples of the design documents run as they stand there, but for their import lines."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ferrule
from ferrule import (
    ConcurrencyConfig,
    FunctionToolSpec,
    ToolConcurrencyController,
    ToolConfigLoader,
    ToolEngine,
    ToolEngineConfig,
    ToolExecutionContext,
    UnifiedToolLibrary,
)
from ferrule.spec import ExtendedToolSpec
from tests.code_blocks import python_blocks, run_block

SEEDS = Path(__file__).parents[2] / "shared/seeds"
ENGINE, TOOLSCORE = SEEDS / "002-toolengine.md", SEEDS / "001-toolscore.md"
pytestmark = pytest.mark.skipif(
    not SEEDS.is_dir(), reason="needs the design documents in shared/seeds beside the project"
)

TYPING = "from enum import Enum\n"


def everything() -> dict[str, Any]:
    return {name: getattr(ferrule, name) for name in ferrule.__all__}


def sample(page: Path, containing: str) -> str:
    """The one block that contains a text, with its import lines pointed at Ferrule."""
    [block] = [b for b in python_blocks(page) if containing in b]
    return re.sub(r"^from (src|core)\.\S+ import", "from ferrule import", block, flags=re.M)


def names_of(block: str, class_name: str) -> list[str]:
    """The fields a sample class declares."""
    body = block.split(f"class {class_name}", 1)[1].split("\nclass ", 1)[0].split("@classmethod", 1)[0]
    return re.findall(r"^    (\w+)\s*:", body, flags=re.M)


async def serve_json(port_of: asyncio.Future[int]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"answer": 42}'
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port_of.set_result(server.sockets[0].getsockname()[1])
        await server.serve_forever()


async def test_the_sub_agent_sample_runs(tmp_path):
    """002 §3.1, with the sample's own YAML as the tool and a local server as the foreign network."""
    yaml = re.search(r"```yaml\n(.*?)```", ENGINE.read_text(encoding="utf-8"), re.S)
    assert yaml is not None
    (tmp_path / "http_request.yaml").write_text(yaml.group(1), encoding="utf-8")
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_json(port))
    guard = ferrule.AddressGuard(allow_private=True)
    seen: list[Any] = []
    async with ToolEngine(ToolEngineConfig(tools_directory=str(tmp_path)), address_guard=guard) as engine:
        assert engine.registry.find_tool("http_request").source == "tools"
        code = sample(ENGINE, "1. 创建 ToolSubAgent").replace(
            "https://api.example.com/data", f"http://127.0.0.1:{await port}"
        )
        made = await run_here(code, {"tool_engine": engine, "handle_result": seen.append})
    server.cancel()
    assert made["result"].output["body"] == {"answer": 42}
    assert [r.is_success for r in made["results"]] == [True, True]
    assert made["summary"]["tool_usage"] == {"http_request": 1, "echo": 1, "calculator": 1}
    assert (made["summary"]["total_calls"], made["summary"]["success_rate"]) == (3, 100.0)
    assert made["brief"]["has_errors"] is False
    assert len(seen) == 3


async def run_here(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """A sample that awaits, in the loop that is running."""
    names = dict(names)
    made = eval(compile(code, "<sample>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(made):
        await made
    return names


def test_the_bucket_and_workflow_samples_run():
    """002 §4.3 to §4.5."""
    names = everything()
    made = run_block(sample(ENGINE, "配置不同工具类型的并发限制"), names)
    assert made["controller"].config.bucket_limits == {"http": 5, "ai": 2, "database": 3}
    made |= run_block(sample(ENGINE, "Workflow 节点不受并发限制"), names)
    assert made["context"].caller_type == "workflow_node"
    made |= run_block(sample(ENGINE, "controller.get_metrics()"), made)
    assert made["metrics"].current_concurrent == 0
    assert made["bucket_metrics"]["http"] == {"current": 0, "limit": 5, "queue": 0}


async def test_the_query_and_final_result_samples_run():
    """002 §5.2 and §5.3."""
    async with ToolEngine() as engine:
        context = ToolExecutionContext.for_conversation("agent", "conv_001")
        await engine.execute("echo", {"message": "x"}, context)
        made = await run_here(sample(ENGINE, 'query_call_records(conversation_id="conv_001")'), {"engine": engine})
        assert made["summary"].tool_usage == {"echo": 1}
        assert made["stats"].total == 1
        final = await run_here(sample(ENGINE, "tool_usage_summary"), {"engine": engine, "conversation_id": "conv_001"})
    assert final["final_result"]["tool_usage_summary"] == {
        "total_calls": 1,
        "success_rate": 100.0,
        "tool_usage": {"echo": 1},
        "has_errors": False,
    }


async def test_the_event_sample_runs(capsys):
    """002 §6.2."""
    async with ToolEngine() as engine:
        await run_here(sample(ENGINE, "def on_tool_event"), {**everything(), "engine": engine})
        await engine.execute("echo", {"message": "x"})
        await engine.execute("calculator", {"expression": "1/0"})
    printed = capsys.readouterr().out
    assert "工具 echo 执行完成" in printed
    assert "工具 calculator 执行失败" in printed


@pytest.mark.parametrize(
    ("class_name", "ours"),
    [
        ("ToolExecutionContext", ferrule.ToolExecutionContext),
        ("ToolExecutionResult", ferrule.ToolExecutionResult),
        ("ValidationResult", ferrule.ValidationResult),
        ("ToolCallRecord", ferrule.ToolCallRecord),
        ("ToolEngineConfig", ferrule.ToolEngineConfig),
    ],
)
def test_the_documented_classes_have_all_documented_fields(class_name, ours):
    blocks = [b for b in python_blocks(ENGINE) if f"class {class_name}" in b]
    assert all(
        hasattr(ours, name) or name in ours.__dataclass_fields__ for b in blocks for name in names_of(b, class_name)
    )


def test_the_documented_defaults_are_ours():
    config, context = ConcurrencyConfig(), ToolExecutionContext()
    assert (config.max_concurrent, config.queue_size, config.default_timeout, config.strategy) == (
        10,
        100,
        30.0,
        "fifo",
    )
    assert (context.timeout, context.retry_count, context.max_retries, context.caller_type) == (30.0, 0, 3, "unknown")
    engine = ToolEngineConfig()
    assert (engine.tools_directory, engine.auto_reload, engine.reload_interval) == ("tools", True, 5.0)
    assert (engine.watch_for_changes, engine.strict_validation) == (False, False)


@pytest.mark.parametrize("enum", ["ToolCategory", "ToolEngineEventType"])
def test_the_documented_enums_have_all_documented_members(enum):
    [block] = [b for b in python_blocks(ENGINE) if f"class {enum}(" in b]
    documented = run_block(TYPING + block)[enum]
    ours = getattr(ferrule, enum)
    assert {m.name: m.value for m in documented}.items() <= {m.name: m.value for m in ours}.items()


def test_the_spec_samples_declare_what_ours_have():
    """001 §4."""
    for class_name in ("ToolCapability", "ToolSpec", "FunctionToolSpec", "MCPServerSpec"):
        [block] = [b for b in python_blocks(TOOLSCORE) if re.search(rf"class {class_name}\b", b) and ": str" in b]
        ours = getattr(ferrule, class_name).__dataclass_fields__
        assert set(names_of(block, class_name)) <= set(ours)
    assert ferrule.ToolType.FUNCTION.value == "function"
    assert ferrule.ToolType.MCP_SERVER.value == "mcp_server"


async def test_the_function_tool_sample_registers_and_is_imported_on_first_use(tmp_path, monkeypatch):
    """001 §6.1 and §6.2, with the class the sample names in a module of our own."""
    folder = tmp_path / "tools/browser"
    folder.mkdir(parents=True)
    (folder / "navigator.py").write_text(
        "class BrowserNavigator:\n"
        "    def __init__(self):\n        self.at = None\n"
        "    async def navigate(self, url):\n        self.at = url\n        return {'at': url}\n"
        "    async def click(self, selector):\n        return {'clicked': selector, 'on': self.at}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = await run_here(sample(TOOLSCORE, "await tool_library.initialize()"), {})
    library: UnifiedToolLibrary = made["tool_library"]
    made = await run_here(sample(TOOLSCORE, "browser_tool = FunctionToolSpec"), {"tool_library": library})
    assert made["result"].success
    assert isinstance(made["browser_tool"], FunctionToolSpec)
    result = await library.execute_tool("browser_navigator", "navigate", {"url": "https://www.example.com"})
    assert result.output == {"at": "https://www.example.com"}
    clicked = await library.execute_tool("browser_navigator", "click", {"selector": "#go"})
    assert clicked.output["on"] == "https://www.example.com"
    await library.aclose()


def test_the_yaml_sample_loads(tmp_path):
    """002 §2.1."""
    yaml = re.search(r"```yaml\n(.*?)```", ENGINE.read_text(encoding="utf-8"), re.S)
    assert yaml is not None
    path = tmp_path / "http_request.yaml"
    path.write_text(yaml.group(1), encoding="utf-8")
    [tool] = ToolConfigLoader().load_file(path).tools
    assert tool.spec.parameters[1].default == "GET"
    assert ToolConcurrencyController(ConcurrencyConfig()).get_metrics().queue_length == 0


def declared_methods(page: Path) -> dict[str, list[str]]:
    """The public methods of `UnifiedToolLibrary` in a document, with the names of their parameters."""
    found = {}
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block)) if block.lstrip().startswith("class UnifiedToolLibrary") else ():
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                found[node.name] = [argument.arg for argument in node.args.args[1:]]
    return found


OF_THE_MEMORY = {
    "execute_tool_with_context",
    "get_alternative_tools",
    "suggest_parameter_adjustments",
    "get_tool_failure_patterns",
}


def test_the_library_has_every_method_of_the_document_with_its_parameters():
    """001 §5."""
    methods = declared_methods(TOOLSCORE)
    assert len(methods) == 17 and methods.keys() >= OF_THE_MEMORY
    for name, parameters in methods.items():
        if hasattr(UnifiedToolLibrary, name) or name not in OF_THE_MEMORY:
            ours = getattr(UnifiedToolLibrary, name)
            assert inspect.iscoroutinefunction(ours), name
            assert list(inspect.signature(ours).parameters)[1 : len(parameters) + 1] == parameters, name


async def test_the_mcp_server_sample_registers():
    """001 §6.3."""
    async with UnifiedToolLibrary() as library:
        made = await run_here(sample(TOOLSCORE, "db_server = MCPServerSpec"), {"tool_library": library})
        assert made["result"].success and made["result"].tool_id == "database_server"
        [server] = await library.get_tools_by_type(ferrule.ToolType.MCP_SERVER)
        assert server.name == "数据库服务器"
        assert "执行数据库查询" in await library.get_tool_description_for_agent("database_server")
        [example] = await library.get_tool_usage_examples("database_server")
        assert example["parameters"] == {"sql": "SELECT * FROM users", "database": "main"}


async def test_the_agent_workflow_sample_runs():
    """001 §6.4, with an agent that has made up its mind."""

    class Decided:
        async def select_tools(self, query: str, described: str) -> list[str]:
            assert "calculator" in described
            return ["calculator"]

        async def create_execution_plan(self, query: str, tools: list[str]) -> list[SimpleNamespace]:
            return [
                SimpleNamespace(tool_id=tool, action=tool, parameters={"expression": expression})
                for tool in tools
                for expression in ("6*7", "1/0", "2+2")
            ]

        async def analyze_result(self, result: ferrule.ToolExecutionResult) -> bool:
            return result.success

    async with UnifiedToolLibrary() as library:
        names = {"tool_library": library, "agent_model": Decided()}
        made = await run_here(sample(TOOLSCORE, "async def agent_workflow(user_query"), names)
        results = await made["agent_workflow"]("What is six times seven?")
    assert [result.success for result in results] == [True, False]
    assert results[0].output["result"] == 42


def test_the_extended_spec_has_the_documented_fields_and_defaults():
    """001 §9.1."""
    block = sample(TOOLSCORE, "class ExtendedToolSpec(ToolSpec)")
    assert names_of(block, "ExtendedToolSpec") == ["category", "subcategory", "priority", "dependencies"]
    spec = ExtendedToolSpec(tool_id="x")
    assert isinstance(spec, ferrule.ToolSpec)
    assert (spec.category, spec.subcategory, spec.priority, spec.dependencies) == ("general", "general", 1, [])
    documented = re.findall(r'^    ([A-Z_]+) = "(\w+)"', block, flags=re.M)
    assert [ferrule.ToolCategory[name].value for name, _ in documented] == [value for _, value in documented]


async def test_the_sample_of_stages_runs(tmp_path, monkeypatch):
    """001 §10.2, and §9.2 after it; what the runtime decides is not the library's."""
    (tmp_path / "staged.py").write_text("class Staged:\n    async def go(self) -> str:\n        return 'gone'\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def staged(tool_id: str) -> FunctionToolSpec:
        return FunctionToolSpec(tool_id=tool_id, module_path="staged", class_name="Staged", tags=["browsing"])

    async def nothing() -> None: ...

    runtime = SimpleNamespace(enable_agent_decision_making=nothing, disable_hardcoded_matching=nothing)
    async with UnifiedToolLibrary() as library:
        names = {"tool_library": library, "runtime": runtime, "LLMModel": SimpleNamespace}
        names |= {"browser_tool": staged("browser"), "python_tool": staged("python")}
        await run_here(sample(TOOLSCORE, "enable_category_management()"), names)
        assert (await library.get_category_tree())["general"]["general"][:2] == ["browser", "python"]
        assert {t.tool_id for t in await library.search_tools_by_requirements(["browsing"])} == {"browser", "python"}
        assert (await library.execute_tool("python", "go", {})).output == {"result": "gone"}
