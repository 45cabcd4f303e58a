"""What a span says: the attributes of OpenTelemetry's conventions for generative AI, and of OpenInference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import encode_json, plain_json
from ferrule.core.events import ToolEngineEvent, ToolEngineEventType
from ferrule.core.messages import Usage, text_of_message
from ferrule.core.model import ModelReply, ModelRequest
from ferrule.core.secrets import Redaction
from ferrule.texts.shorten import cut

Attributes = dict[str, Any]

WORKFLOW_NAME: Final = "ferrule"
_SPAN_KINDS: Final = {
    ToolEngineEventType.QUESTION_STARTED: "CHAIN",
    ToolEngineEventType.PLANNING_STARTED: "CHAIN",
    ToolEngineEventType.AGENT_STARTED: "AGENT",
    ToolEngineEventType.MODEL_STARTED: "LLM",
    ToolEngineEventType.BEFORE_TOOL_CALL: "TOOL",
}
"""Of OpenInference."""


class SpanDescription:
    """Describes the spans of events. Contents are without secrets and no longer than a limit."""

    def __init__(self, redaction: Redaction, *, has_content: bool, max_content: int, has_openinference: bool) -> None:
        self._redaction, self._has_content, self._max_content = redaction, has_content, max_content
        self._has_openinference = has_openinference

    def start(self, event: ToolEngineEvent) -> tuple[str, bool, Attributes]:
        """Return the name of a span, whether it is a request to another system, and its first attributes."""
        data, is_request = event.data, event.event_type is ToolEngineEventType.MODEL_STARTED
        match event.event_type:
            case ToolEngineEventType.QUESTION_STARTED:
                name, attributes = f"invoke_workflow {WORKFLOW_NAME}", self._input(data.get("question", ""))
                attributes |= {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": WORKFLOW_NAME}
                if conversation_id := data.get("conversation_id"):
                    attributes["gen_ai.conversation.id"] = conversation_id
                    if self._has_openinference:
                        attributes["session.id"] = conversation_id
            case ToolEngineEventType.PLANNING_STARTED:
                name, attributes = "plan planning", {"gen_ai.operation.name": "plan", "gen_ai.agent.name": "planning"}
                attributes |= self._input(data["task"])
            case ToolEngineEventType.AGENT_STARTED:
                attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": data["agent"]}
                name, attributes = f"invoke_agent {data['agent']}", attributes | self._input(data["task"])
            case ToolEngineEventType.MODEL_STARTED:
                name, attributes = f"chat {data['model']}", self._start_request(data["model"], data["request"])
            case _:
                name, attributes = f"execute_tool {event.tool_name}", self._start_call(event)
        if run_id := data.get("run_id"):
            attributes["ferrule.run.id"] = run_id
        if event.principal is not None:
            attributes["ferrule.principal"] = event.principal.label
        if self._has_openinference:
            attributes["openinference.span.kind"] = _SPAN_KINDS[event.event_type]
        return name, is_request, attributes

    def end(self, event: ToolEngineEvent) -> Attributes:
        """Return the attributes that are known when the span ends."""
        data = event.data
        match event.event_type:
            case ToolEngineEventType.QUESTION_ENDED if "result" in data:
                result = data["result"]
                facts = {"ferrule.run.id": result.run_id, "ferrule.strategy": result.strategy}
                facts |= {"ferrule.state": result.state.value, "ferrule.cached": result.cached}
                return facts | self._usage(result.usage) | self._output(result.answer)
            case ToolEngineEventType.PLANNING_ENDED if "plan" in data:
                return self._output(self._as_json(data["plan"].to_dict()))
            case ToolEngineEventType.AGENT_ENDED if "answer" in data:
                answer = data["answer"]
                return {"ferrule.state": answer.state.value} | self._usage(answer.usage) | self._output(answer.text)
            case ToolEngineEventType.MODEL_ENDED if "reply" in data:
                return self._end_request(data["reply"])
            case ToolEngineEventType.AFTER_TOOL_CALL:
                result = data["result"]
                attributes: Attributes = {"ferrule.execution_time": result.execution_time}
                if self._has_content and result.is_success:
                    attributes["gen_ai.tool.call.result"] = self._as_json(result.output)
                return attributes | self._openinference_value("output", attributes.get("gen_ai.tool.call.result"))
        return {}

    def cut(self, text: str) -> str:
        return cut(self._redaction.redact_text(text), self._max_content)

    # Models

    def _start_request(self, model: str, request: ModelRequest) -> Attributes:
        provider, separator, _ = model.partition(":")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.provider.name": provider if separator else "ferrule",
        }
        if request.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = request.max_tokens
        if request.temperature is not None:
            attributes["gen_ai.request.temperature"] = request.temperature
        if self._has_openinference:
            attributes["llm.model_name"] = model
        if self._has_content:
            attributes["gen_ai.input.messages"] = self._messages(request.messages)
        return attributes | self._openinference_value("input", attributes.get("gen_ai.input.messages"))

    def _end_request(self, reply: ModelReply) -> Attributes:
        attributes = {"gen_ai.response.finish_reasons": [reply.finish_reason], **self._usage(reply.usage)}
        if self._has_content:
            parts: list[dict[str, Any]] = [{"type": "text", "content": reply.text}] if reply.text else []
            for call in reply.tool_calls:
                parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
            message = {"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason}
            attributes["gen_ai.output.messages"] = self._as_json([message])
        return attributes | self._openinference_value("output", attributes.get("gen_ai.output.messages"))

    def _messages(self, messages: Iterable[Mapping[str, Any]]) -> str:
        """Return the last messages that fit the limit."""
        parts: list[dict[str, Any]] = []
        rest = self._max_content
        for message in reversed(list(messages)):
            text = self.cut(text_of_message(message))
            rest -= len(text)
            if rest < 0 and parts:
                break
            parts.insert(0, {"role": message["role"], "parts": [{"type": "text", "content": text}]})
        return encode_json(parts).decode()

    def _usage(self, usage: Usage) -> Attributes:
        attributes = {
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
        if usage.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        if self._has_openinference:
            attributes["llm.token_count.prompt"] = usage.input_tokens
            attributes["llm.token_count.completion"] = usage.output_tokens
            attributes["llm.token_count.total"] = usage.total_tokens
        return attributes

    # Calls

    def _start_call(self, event: ToolEngineEvent) -> Attributes:
        context: ToolExecutionContext = event.data["context"]
        name = str(event.tool_name)
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": context.tool_call_id or event.call_id,
            "ferrule.call.id": event.call_id,
        }
        if run_id := context.conversation_id or context.workflow_id:
            attributes["ferrule.run.id"] = run_id
        if event.data["action"]:
            attributes["ferrule.action"] = event.data["action"]
        if self._has_openinference:
            attributes["tool.name"] = name
        if self._has_content:
            attributes["gen_ai.tool.call.arguments"] = self._as_json(event.data["params"])
        return attributes | self._openinference_value("input", attributes.get("gen_ai.tool.call.arguments"))

    # Contents

    def _as_json(self, value: Any) -> str:
        return self.cut(encode_json(self._redaction.redact(plain_json(value))).decode())

    def _input(self, text: str) -> Attributes:
        return self._content("input", text, role="user")

    def _output(self, text: str) -> Attributes:
        return self._content("output", text, role="assistant", finish_reason="stop")

    def _content(self, direction: str, text: str, **members: str) -> Attributes:
        if not self._has_content or not text:
            return {}
        content = self.cut(text)
        message = {**members, "parts": [{"type": "text", "content": content}]}
        attributes: Attributes = {f"gen_ai.{direction}.messages": encode_json([message]).decode()}
        return attributes | self._openinference_value(direction, content)

    def _openinference_value(self, direction: str, value: str | None) -> Attributes:
        return {} if value is None or not self._has_openinference else {f"{direction}.value": value}
