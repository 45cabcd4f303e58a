"""The MCP server that the official conformance suite expects: python conformance_server.py [stdio|http] [PORT]

The names and texts are those of the suite.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer, RequestStateSecurity
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
server = MCPServer(
    "conformance",
    version="1",
    instructions="For the conformance suite.",
    request_state_security=RequestStateSecurity(keys=[b"a key that is long enough for the tests"]),
    log_level="ERROR",
)


# Content


def embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, text=text, mime_type=mime_type))


@server.tool()
def test_simple_text() -> str:
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> list[ImageContent]:
    return [ImageContent(data=PNG, mime_type="image/png")]


@server.tool()
def test_audio_content() -> list[AudioContent]:
    return [AudioContent(data=WAV, mime_type="audio/wav")]


@server.tool()
def test_embedded_resource() -> list[EmbeddedResource]:
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PNG, mime_type="image/png"),
        embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


@server.tool()
def test_error_handling() -> str:
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool()
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>",
) -> str:
    return f"region={region}"


@server.tool()
def json_schema_2020_12_tool() -> str:
    return "done"


server._tool_manager._tools["json_schema_2020_12_tool"].parameters = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


# Messages during a call


@server.tool()
async def test_tool_with_logging(ctx: Context) -> str:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(text)
    return "logged"


@server.tool()
async def test_tool_with_progress(ctx: Context) -> str:
    for amount in (0, 50, 100):
        await ctx.report_progress(amount, 100, f"Completed step {amount} of 100")
    return "done"


@server.tool()
async def test_sampling(prompt: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    reply: Any = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {reply.content.text}"


class Answer(BaseModel):
    response: str


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field("active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def titled(**titles: str) -> list[dict[str, str]]:
    return [{"const": name, "title": title} for name, title in titles.items()]


class Choices(BaseModel):
    untitledSingle: str = Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": titled(low="Low", medium="Medium", high="High")})  # type: ignore[dict-item]
    untitledMulti: list[str] = Field(json_schema_extra={"items": {"type": "string", "enum": ["read", "write"]}})
    titledMulti: list[str] = Field(json_schema_extra={"items": {"anyOf": titled(bug="Bug", docs="Docs")}})  # type: ignore[dict-item]
    legacyEnum: str = Field(json_schema_extra={"enum": ["small", "large"], "enumNames": ["Small", "Large"]})


async def ask(ctx: Context, message: str, form: type[BaseModel]) -> str:
    answer: Any = await ctx.elicit(message=message, schema=form)
    content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
    return f"User response: action={answer.action}, content={content}"


@server.tool()
async def test_elicitation(message: str, ctx: Context) -> str:
    return await ask(ctx, message, Answer)


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    return await ask(ctx, "Please provide user information", Defaults)


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    return await ask(ctx, "Please select values", Choices)


@server.tool()
async def test_missing_capability(ctx: Context) -> str:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY, "sampling is needed", {"requiredCapabilities": {"sampling": {}}}
        )
    return "sampling is there"


# Questions of the newer protocol


def question(name: str, message: str = "Please answer") -> ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=50))


def answers(ctx: Context) -> dict[str, Any]:
    return dict(ctx.input_responses or {})


@server.tool()
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    if "user_name" in answers(ctx):
        return f"Hello, {(answers(ctx)['user_name'].content or {}).get('name')}!"
    return InputRequiredResult(input_requests={"user_name": question("name", "What is your name?")})


@server.tool()
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    if "capital" in answers(ctx):
        return f"Model said: {answers(ctx)['capital'].content.text}"
    return InputRequiredResult(input_requests={"capital": sampling("What is the capital of France?")})


@server.tool()
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    if "client_roots" in answers(ctx):
        return f"{len(answers(ctx)['client_roots'].roots)} roots"
    return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})


@server.tool()
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    if "confirm" in answers(ctx) and ctx.request_state == "a state":
        return "state-ok"
    return InputRequiredResult(input_requests={"confirm": question("ok")}, request_state="a state")


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    if {"user_name", "greeting", "client_roots"} <= answers(ctx).keys():
        return "All inputs received."
    requests: dict[str, Any] = {
        "user_name": question("name"),
        "greeting": sampling("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }
    return InputRequiredResult(input_requests=requests, request_state="several")


@server.tool()
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    state = json.loads(ctx.request_state or '{"round": 0}')
    if state["round"] == 1 and "step1" in answers(ctx):
        state = json.dumps({"round": 2, "name": (answers(ctx)["step1"].content or {}).get("name")})
        return InputRequiredResult(input_requests={"step2": question("color", "Step 2")}, request_state=state)
    if state["round"] == 2 and "step2" in answers(ctx):
        return f"{state['name']} likes {(answers(ctx)['step2'].content or {}).get('color')}."
    return InputRequiredResult(input_requests={"step1": question("name", "Step 1")}, request_state='{"round": 1}')


@server.tool()
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    if ctx.request_state is not None:
        return f"state-ok: {ctx.request_state}"
    return InputRequiredResult(input_requests={"confirm": question("ok")}, request_state="round-1")


@server.tool()
async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    able = ctx.client_capabilities
    requests: dict[str, Any] = {}
    if able is not None and able.sampling is not None:
        requests["sample"] = sampling("Say hello")
    if able is not None and able.elicitation is not None:
        requests["ask"] = question("name")
    return InputRequiredResult(input_requests=requests, request_state="gated")


# Changes, resources, prompts


@server.tool()
async def test_trigger_tool_change(ctx: Context) -> str:
    server.add_tool(lambda: "dynamic", name="test_dynamic_tool")
    server.remove_tool("test_dynamic_tool")
    await ctx.notify_tools_changed()
    return "changed"


@server.tool()
async def test_trigger_prompt_change(ctx: Context) -> str:
    server.add_prompt(Prompt.from_function(lambda: "dynamic", name="test_dynamic_prompt", description="dynamic"))
    server.remove_prompt("test_dynamic_prompt")
    await ctx.notify_prompts_changed()
    return "changed"


@server.resource("test://static-text")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary")
def static_binary() -> bytes:
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data")
def template(id: str) -> str:
    return json.dumps({"id": id, "templateTest": True})


@server.resource("test://watched-resource")
def watched() -> str:
    return "Watched resource content"


def user(content: Any) -> UserMessage:
    return UserMessage(content=TextContent(text=content) if isinstance(content, str) else content)


@server.prompt()
def test_simple_prompt() -> list[UserMessage]:
    return [user("This is a simple prompt for testing.")]


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    return [user(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    return [user(embedded(resourceUri, "Embedded resource content.")), user("Please process the resource above.")]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    return [user(ImageContent(data=PNG, mime_type="image/png")), user("Please analyze the image above.")]


@server.prompt()
async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    if "user_context" in answers(ctx):
        return [user(f"Use this context: {(answers(ctx)['user_context'].content or {}).get('context')}")]
    return InputRequiredResult(input_requests={"user_context": question("context")})


@server.completion()  # type: ignore[untyped-decorator]
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    return Completion(values=[f"{argument.value}{ending}" for ending in ("1", "2")], total=2, has_more=False)


entries: list[Any] = [*server._tool_manager._tools.values(), *server._prompt_manager._prompts.values()]
for entry in entries:
    entry.description = entry.description or entry.name


async def accept(ctx: Any, params: Any) -> EmptyResult:
    return EmptyResult()


lowlevel = server._lowlevel_server
lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, accept)
lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, accept)
lowlevel.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, accept)

if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
