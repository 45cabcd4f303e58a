"""What is believed of a server: nothing about effects unless it is trusted, and no schema that costs too much."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from ferrule import (
    Approval,
    Effects,
    MCPServerSpec,
    Policy,
    Rule,
    ToolEngine,
    ToolEngineConfig,
    ToolExecutionContext,
    ToolExecutionResult,
    UnifiedToolLibrary,
)
from ferrule.core.spec import ToolCapability
from ferrule.kinds.mcp.config import read_server_config
from ferrule.server.mcp import McpServer
from tests.kinds.mcp.mcp_servers import RAW_SERVER, engine_for, rough

pytestmark = pytest.mark.integration

ASSUMED = Effects(destructive=True, open_world=True)


def actions_of(engine: ToolEngine, name: str = "server") -> dict[str, ToolCapability]:
    return {capability.name: capability for capability in engine.registry.find_tool(name).spec.capabilities}


def engine_in(folder: Path, actions: list[Any], **options: Any) -> ToolEngine:
    """An engine with one server, `raw`, that lists these entries too."""
    (folder / "actions.json").write_text(json.dumps(actions))
    entry = {"command": sys.executable, "args": [str(RAW_SERVER), "--actions", str(folder / "actions.json")], **options}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": entry}}))
    config = ToolEngineConfig(
        tools_directory="no-such-folder", builtin_tools=False, mcp_file=str(folder / "mcp.json"), auto_reload=False
    )
    return ToolEngine(config)


# Effects


async def test_an_action_of_an_untrusted_server_may_do_anything_whatever_it_claims():
    async with engine_for(rough()) as engine:
        actions = actions_of(engine)
    assert {action.effects for action in actions.values()} == {ASSUMED}
    assert actions["echo"].annotations == {"readOnlyHint": True}


async def test_the_claims_of_a_trusted_server_are_believed_with_the_defaults_of_the_protocol():
    async with engine_for(rough(trusted=True)) as engine:
        actions = actions_of(engine)
    assert actions["echo"].effects == Effects(read_only=True, open_world=True)
    assert actions["die"].effects == Effects(idempotent=True, destructive=True, open_world=True)
    assert actions["hang"].effects == ASSUMED


async def test_a_trusted_server_may_say_that_an_action_destroys_nothing_and_stays_here(tmp_path):
    hints = {"destructiveHint": False, "openWorldHint": False}
    entries = [{"name": "save", "inputSchema": {"type": "object"}, "annotations": hints}]
    async with engine_in(tmp_path, entries, trusted=True) as engine:
        await engine.wait_for_discovery()
        assert actions_of(engine, "raw")["save"].effects == Effects()


def test_only_true_trusts_a_server():
    for value in ("true", 1, None, ["yes"]):
        assert not read_server_config({"command": "x", "trusted": value}).trusted
    assert read_server_config({"command": "x", "trusted": True}).trusted


async def test_a_server_in_a_program_is_trusted_by_its_configuration():
    config = {"command": sys.executable, "args": [str(RAW_SERVER)]}
    async with UnifiedToolLibrary(engine=ToolEngine(ToolEngineConfig(tools_directory="no-such-folder"))) as library:
        library.register(
            MCPServerSpec(tool_id="doubted", server_config=config),
            MCPServerSpec(tool_id="believed", server_config={**config, "trusted": True}),
            MCPServerSpec(
                tool_id="declared",
                server_config=config,
                capabilities=[ToolCapability(name="echo", description="Says it again.")],
            ),
        )
        declared = library.engine.registry.find_tool("declared").spec
        assert declared.effects_of(declared.capabilities[0]) == ASSUMED
        for name, read_only in (("doubted", False), ("believed", True)):
            await library.engine.ping(library.engine.registry.find_tool(name))
            effects = actions_of(library.engine, name)["echo"].effects
            assert effects is not None and effects.read_only == read_only


@pytest.mark.parametrize("key", ["autoApprove", "alwaysAllow"])
@pytest.mark.parametrize("value", [["pay", "hang"], "*", ["*"]])
async def test_actions_that_the_file_approves_need_no_approval(tmp_path, key, value):
    async with engine_in(tmp_path, [], **{key: value}) as engine:
        await engine.wait_for_discovery()
        actions = actions_of(engine, "raw")
    approved = {name for name, action in actions.items() if action.auto_approve}
    assert approved == ({"pay", "hang"} if "pay" in value else actions.keys())


async def test_annotations_reach_clients_of_our_server_as_the_server_wrote_them(tmp_path):
    hints = {"title": "A look", "readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
    entries = [{"name": "look", "inputSchema": {"type": "object"}, "annotations": hints}]
    async with UnifiedToolLibrary(engine=engine_in(tmp_path, entries)) as library:
        await library.engine.wait_for_discovery()
        async with Client(McpServer(library).server()) as client:
            listed = {one.name: one.annotations for one in (await client.list_tools()).tools}
    annotations = listed["raw__look"]
    assert annotations is not None and annotations.model_dump(by_alias=True, exclude_none=True) == hints


# Schemas


def multiplied(width: int, depth: int) -> dict[str, Any]:
    """A schema of a few lines that expands to `width ** depth` alternatives."""
    definitions: dict[str, Any] = {"0": {"type": "string", "maxLength": 1}}
    for level in range(1, depth + 1):
        definitions[str(level)] = {"anyOf": [{"$ref": f"#/$defs/{level - 1}"}] * width}
    return {"type": "object", "properties": {"x": {"$ref": f"#/$defs/{depth}"}}, "$defs": definitions}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def slow_to_estimate(reference: dict[str, str]) -> dict[str, Any]:
    """A schema with thousands of references, each to any of thousands of places."""
    places = {str(number): {"$id": f"https://x/{number}", "$dynamicAnchor": "n"} for number in range(3_000)}
    return {"type": "object", "properties": {f"x{number}": reference for number in range(3_000)}, "$defs": places}


def bad_schemas() -> dict[str, Any]:
    return {
        "multiplied": multiplied(10, 12),
        "long_references": slow_to_estimate({"$ref": "#/" + "a/" * 3_000}),
        "many_targets": slow_to_estimate({"$dynamicRef": "#n"}),
        "nested": nested(80),
        "huge": {"type": "object", "properties": {"x": {"enum": [str(number) for number in range(60_000)]}}},
        "invalid": {"type": "object", "properties": {"x": {"type": "no-such-type"}}},
        "a_list": ["not", "a", "schema"],
        "absent": None,
        "no_object": {"type": "array"},
        "bad_pattern": {"type": "object", "properties": {"x": {"pattern": "("}}},
    }


async def test_a_bad_schema_hides_only_its_action_and_the_reason_is_reported(tmp_path):
    bad = bad_schemas()
    entries = [{"name": name, "inputSchema": schema} for name, schema in bad.items()]
    more = ["no entry", {"inputSchema": {"type": "object"}}, {"name": "strange", "inputSchema": {}, "icons": 5}]
    async with engine_in(tmp_path, [*entries, *more]) as engine:
        assert (await engine.execute("raw__echo", {"x": 1})).is_success
        assert (await engine.execute("raw__strange", {"x": 1})).is_success
        spec = engine.registry.find_tool("raw").spec
        reported = " ".join(map(str, engine.load_errors))
        refused = await engine.execute("raw__multiplied", {"x": 1})
    assert spec.unavailable_actions.keys() >= bad.keys() and len(spec.unavailable_actions) == len(bad) + 2
    assert spec.unavailable_actions.keys().isdisjoint(actions_of(engine, "raw"))
    assert all(f"the action {name!r} is unavailable" in reported for name in bad)
    assert refused.error_type == "tool_not_found" and "too costly to check" in (refused.error or "")
    async with engine_in(tmp_path, entries) as engine:  # from the listing on disk, the server is not started
        assert "too costly" in engine.registry.find_tool("raw").spec.unavailable_actions["multiplied"]
        assert "too costly" in " ".join(map(str, engine.load_errors))


HOSTILE_SCHEMAS: dict[str, Any] = {
    "recursive": {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/e"}},
        "$defs": {"e": {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/e"}}, "required": ["b"]}] * 10}},
    },
    "backtracking": {"type": "object", "properties": {"x": {"type": "string", "pattern": "^((?!x)a|(?!y)a)*b$"}}},
    "self_reference": {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
    "below_the_limit": multiplied(10, 4),
}


def deep_value(levels: int) -> Any:
    value: Any = 5
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_no_argument_makes_a_check_run_for_long(tmp_path):
    """A check that takes exponential time would not end within the timeout of this test."""
    entries = [{"name": name, "inputSchema": schema} for name, schema in HOSTILE_SCHEMAS.items()]
    async with engine_in(tmp_path, entries) as engine:
        await engine.wait_for_discovery()
        listed = str(UnifiedToolLibrary(engine=engine).schemas())
        for name in HOSTILE_SCHEMAS:
            assert name in listed
            for value in (5, "a" * 60 + "!", deep_value(30), [deep_value(3)] * 500):
                await engine.execute("raw", {"x": value}, action=name)


async def test_the_results_of_a_server_are_checked_without_running_for_long(tmp_path):
    """The server controls both sides here: the pattern and the text."""
    output = {"type": "object", "properties": {"text": {"pattern": "^(a|a)*$"}}}
    entries = [{"name": "structured", "inputSchema": {"type": "object"}, "outputSchema": output}]
    async with engine_in(tmp_path, entries) as engine:
        await engine.execute("raw__structured", {"structured": {"text": "a" * 60 + "!"}})
        wrong = await engine.execute("raw__structured", {"structured": {"text": "b"}})
        right = await engine.execute("raw__structured", {"structured": {"text": "aa"}})
        none = await engine.execute("raw__structured", {})
    assert right.output == {"text": "aa"} and "does not match its output schema" in (wrong.error or "")
    assert "no structured content" in (none.error or "")


async def test_rules_about_arguments_hold_for_edited_ones_that_the_server_converts(tmp_path):
    schema = {"type": "object", "properties": {"force": {"type": "boolean"}}}
    (tmp_path / "actions.json").write_text(json.dumps([{"name": "remove", "inputSchema": schema}]))
    policy = Policy(rules=[Rule(verdict="deny", arguments={"force": True}), Rule(verdict="ask", tool="server*")])
    async with engine_for(rough("--actions", tmp_path / "actions.json")) as engine:

        async def remove(force: Any, approval_id: str | None = None) -> ToolExecutionResult:
            context = ToolExecutionContext(policy=policy, leaves_validation_to_tool=True, approval_id=approval_id)
            return await engine.execute("server", {"force": force}, context, action="remove")

        assert (await remove("true")).error_type == "permission_denied"
        results = []
        for force in (False, "true", True, "perhaps"):
            approval_id = (await remove(False)).metadata["approval_id"]
            await engine.approvals.record_decision(approval_id, Approval(allowed=True, arguments={"force": force}))
            results.append((await remove(False, approval_id)).error_type)
        assert results == [None, "permission_denied", "permission_denied", "permission_denied"]
