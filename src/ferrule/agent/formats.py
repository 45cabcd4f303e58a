"""How requests to a model are built and its replies parsed: with tool calls, or with decisions on a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ferrule.agent.answer import OnEvent, TextPiece
from ferrule.agent.budget import RunLimits
from ferrule.agent.control_tools import CONTROL_TOOLS
from ferrule.agent.decisions import AgentDecision, parse_decision
from ferrule.agent.prompts import contextual_decision_prompt
from ferrule.agent.run import Run
from ferrule.agent.toolbox import ToolOffer
from ferrule.core.content import MAX_DEPTH, as_text, encode_json, is_nested_deeper
from ferrule.core.messages import (
    TOKENS_OF_IMAGE,
    Message,
    ToolCall,
    assistant_message,
    count_images,
    text_of_message,
    user_message,
)
from ferrule.core.model import EndReply, Model, ModelReply, ModelRequest, can_end_reply
from ferrule.core.names import model_name
from ferrule.core.patterns import lazy_pattern
from ferrule.core.spec import ToolSpec
from ferrule.errors import ModelError, SetupError, error_text
from ferrule.memory.context import ExecutionContext
from ferrule.parsing import KnownTools, ToolCallReader, parse_model_text, remove_empty_markup
from ferrule.texts.language import detect_language
from ferrule.texts.prompts import prompt_texts
from ferrule.texts.shorten import estimate_tokens, shorten

# Keeping the history within what a model can read. Old tool results are cut first, because they are long and the model
# has usually repeated what mattered. Then whole turns are dropped, each with its calls and their results, because no
# API accepts one without the other. The system message, the task and the last turns stay. The run's own history stays
# complete.

_COMPACTED_SHARE: Final = 0.5
"""Cutting below the window avoids cutting again every turn, and keeps prompt caches valid."""
MAX_OLD_RESULT: Final = 200
"""Characters of an old result that are kept."""
RECENT_TURNS: Final = 4
"""The last turns are never cut."""
_MAX_NAMES: Final = 20
"""Names of tools in a correction."""
MAX_FOUND_LENGTH: Final = 2000
"""Characters of a result in an answer, or in the request for one."""
MAX_REMINDER_LENGTH: Final = 300
"""Characters of the task, when a model is reminded of it."""
_OMISSION = lazy_pattern(r"\[(\d{1,9}) earlier turns of this task are left out here\.\]")


class HistoryCompaction:
    """The history of one run as its model sees it."""

    def __init__(self, window_tokens: int) -> None:
        self._window = window_tokens
        self._visible: list[Message] = []
        self._count = 0
        self._tokens = 0
        self._task = ""

    def visible_messages(self, messages: Sequence[Message], task: str) -> list[Message]:
        """Return the messages to send, with the task. `messages` is the full history, which only grows."""
        self._task = task
        fresh = list(messages[self._count :])
        self._count = len(messages)
        self._visible += fresh
        self._tokens += sum(map(estimate_message_tokens, fresh))
        if self._tokens > self._window:
            self._visible = compact_messages(self._visible, int(self._window * _COMPACTED_SHARE), task)
            self._tokens = sum(map(estimate_message_tokens, self._visible))
        return self._visible

    def halve_window(self) -> bool:
        """Send half as much from now on; False if nothing more can be omitted."""
        before, self._window = self._tokens, self._tokens // 2
        self._visible = compact_messages(self._visible, self._window, self._task)
        self._tokens = sum(map(estimate_message_tokens, self._visible))
        return self._tokens < before


def compact_messages(messages: Sequence[Message], budget: int, task: str) -> list[Message]:
    """Shorten the messages to a budget of tokens, as far as possible without cutting the last turn."""
    head, turns = _split_turns(messages)
    old = max(0, len(turns) - RECENT_TURNS)
    total = sum(map(estimate_message_tokens, messages))
    for turn in turns[:old]:
        if total <= budget:
            break
        for index, message in enumerate(turn):
            content = message.get("content")
            if message["role"] == "tool" and isinstance(content, str) and len(content) > MAX_OLD_RESULT:
                rest = len(content) - MAX_OLD_RESULT
                short = f"{content[:MAX_OLD_RESULT].rstrip()} … [{rest} characters left out]"
                turn[index] = {**message, "content": short}
                total += estimate_message_tokens(turn[index]) - estimate_message_tokens(message)
    dropped = 0
    while total > budget and dropped < len(turns) - 1:
        total -= sum(map(estimate_message_tokens, turns[dropped]))
        dropped += 1
    if dropped:
        omitted = [message for turn in turns[:dropped] for message in turn]
        before = sum(int(match[1]) for m in head if (match := _OMISSION.fullmatch(str(m["content"]))))
        head = [message for message in head if not _OMISSION.fullmatch(str(message["content"]))]
        question = next((m for m in reversed(omitted) if m["role"] == "user" and m["content"] == task), None)
        note = user_message(f"[{before + dropped} earlier turns of this task are left out here.]")
        head = [*head, note, *filter(count_images, omitted), *([question] if question is not None else ())]
    return [*head, *(message for turn in turns[dropped:] for message in turn)]


def estimate_message_tokens(message: Message) -> int:
    calls, images = message.get("tool_calls"), count_images(message) * TOKENS_OF_IMAGE
    return (
        4
        + images
        + estimate_tokens(text_of_message(message))
        + (estimate_tokens(encode_json(calls).decode()) if calls else 0)
    )


def _split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Return the messages before the first reply, and the turns: each reply with the messages up to the next."""
    head: list[Message] = []
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "assistant":
            turns.append([message])
        elif turns:
            turns[-1].append(message)
        else:
            head.append(message)
    return head, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A model's reply: calls, an answer, or neither."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    source: str = ""
    """The calls as the model wrote them in its text; empty if it made them through its API."""
    correction: str | None = None
    """What to tell the model before it is asked again, if it gave neither calls nor an answer."""
    is_answer_if_repeated: bool = False
    """Whether the text counts as the answer if the model was told a correction before."""


class ReplyFormat(Protocol):
    """Builds the request for a model from the state of a run, and parses its reply."""

    def request(self, run: Run, offer: ToolOffer, *, may_call: bool = True) -> ModelRequest:
        """`may_call=False` asks for an answer without further calls."""
        ...

    def parse(self, run: Run, reply: ModelReply, offer: ToolOffer) -> ParsedReply: ...

    def shorten_history(self) -> bool:
        """Send less from now on, because a request was too long for the model; False if that is not possible."""
        ...


class ToolCallFormat:
    """The model sees the history and the schemas, and calls tools: by its API, or in its text if it has none."""

    def __init__(self, window_tokens: int) -> None:
        self._history = HistoryCompaction(window_tokens)

    def request(self, run: Run, offer: ToolOffer, *, may_call: bool = True) -> ModelRequest:
        if not may_call:
            return ModelRequest(messages=ask_for_answer_from_results(run))
        messages = self._history.visible_messages(run.messages, run.task)
        if run.call_sources:
            messages = show_calls_as_written(messages, run)
        tools = [schema for schema in offer.schemas if schema["function"]["name"] not in run.refused_names]
        return ModelRequest(messages=messages, tools=tools or offer.schemas, failed_calls=frozenset(run.failed_calls))

    def shorten_history(self) -> bool:
        return self._history.halve_window()

    def parse(self, run: Run, reply: ModelReply, offer: ToolOffer) -> ParsedReply:
        if (reply.finish_reason == "refused" or reply.is_verbatim) and not reply.tool_calls:
            return ParsedReply(text=reply.text or "The model refuses to answer this.")
        reading = parse_model_text(reply.text, offer.known_tools, until_prose=True)
        if reply.tool_calls:
            calls = [(call.name, call.arguments) for call in reply.tool_calls]
            repeats_calls = all((call.name, call.arguments) in calls for call in reading.calls)
            text = remove_empty_markup(reading.text if repeats_calls else reply.text)
            return ParsedReply(text=text, calls=reply.tool_calls)
        if reading.calls:
            return ParsedReply(text=remove_empty_markup(reading.text), calls=reading.calls, source=reading.source)
        answer = reading.text.rpartition("Final Answer:")[2].strip()  # some models write their reasoning before it
        return _check_answer(answer or reading.text, run, offer)


class DecisionFormat:
    """The model sees the state of the task and decides: execute_tool, replan, switch_tool or complete.

    A subclass may change what the model is asked and how its reply is read; `Agent(style=…)` takes an object of it.
    """

    def create_contextual_decision_prompt(self, context: ExecutionContext) -> str:
        return contextual_decision_prompt(context)

    def parse_agent_decision(self, text: str) -> AgentDecision:
        """Return the decision in a reply. ModelError tells the model what is missing."""
        return parse_decision(text)

    def validate_decision(self, decision: AgentDecision, context: ExecutionContext) -> AgentDecision:
        """Return the decision as it is to be carried out. ModelError tells the model why it cannot be."""
        return decision

    def shorten_history(self) -> bool:
        return False  # the prompt is short already

    def list_tools(self, run: Run, offer: ToolOffer, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
        """Return the tools that the model chooses from: those that fit the task first, and none whose call was refused
        in the last turn, if there are others.
        """
        visible, selected = _list_visible_tools(offer), []
        for spec in sorted(tools, key=lambda spec: spec.tool_id not in visible):
            actions = [each for each in spec.capabilities if spec.model_name(each) not in run.refused_names]
            if len(actions) == len(spec.capabilities):
                selected.append(spec)
            elif actions:
                selected.append(replace(spec, capabilities=actions))
        return selected or list(tools)

    def request(self, run: Run, offer: ToolOffer, *, may_call: bool = True) -> ModelRequest:
        tools = self.list_tools(run, offer, run.context.available_tools)
        prompt = self.create_contextual_decision_prompt(replace(run.context, available_tools=tools))
        corrections = [m for m in run.messages[-1:] if m["role"] == "user" and m["content"] != run.task]
        images = filter(count_images, run.messages)
        return ModelRequest(messages=[*run.messages[:1], *images, user_message(prompt), *corrections])

    def parse(self, run: Run, reply: ModelReply, offer: ToolOffer) -> ParsedReply:
        if reply.tool_calls:
            return ParsedReply(text=reply.text, calls=reply.tool_calls)
        try:
            decision = self.validate_decision(self.parse_agent_decision(reply.text), run.context)
        except ModelError as error:
            return ParsedReply(text=reply.text, correction=str(error))
        return convert_decision(decision, run, offer)


def _list_visible_tools(offer: ToolOffer) -> list[str]:
    names = [schema["function"]["name"] for schema in offer.schemas]
    return [offer.actions[name][0].id for name in names if name in offer.actions]


def convert_decision(decision: AgentDecision, run: Run, offer: ToolOffer) -> ParsedReply:
    """Return a decision as a reply of the loop: a call, the answer, or what the model is told next."""
    if decision.action_type == "complete":
        last = run.context.observation_texts[-1] if run.context.current_observations else ""
        # The reasoning may say only that the task is done: the answer must hold what was found.
        texts = [decision.reasoning, "" if last.strip() in decision.reasoning else shorten(last, MAX_FOUND_LENGTH)]
        return ParsedReply(text="\n\n".join(filter(None, texts)) or "Done.")
    if decision.action_type == "replan":
        if decision.reasoning:
            run.context.original_plan = [{"description": decision.reasoning}]
        return ParsedReply(text=decision.reasoning, correction="Continue with the new plan: decide on its first step.")
    if decision.action_type == "switch_tool" and not decision.parameters:
        switches = run.context.learned_patterns.get("tool_switches") or []
        switch = switches[-1] if switches else {"from_tool": None, "to_tools": []}
        tools = dict.fromkeys([*switch["to_tools"], *_list_visible_tools(offer)])
        others = [name for name in tools if name != switch["from_tool"]]
        correction = f"Decide which tool to execute instead. Available: {', '.join(others[:10])}."
        return ParsedReply(text=decision.reasoning, correction=correction)
    name = model_name(decision.tool_id or "", decision.action)
    if name not in offer.actions and decision.tool_id is not None:
        name = next((n for n in (model_name(decision.tool_id), decision.tool_id) if n in offer.actions), name)
    return ParsedReply(text=decision.reasoning, calls=[ToolCall(name=name, arguments=dict(decision.parameters or {}))])


def show_calls_as_written(messages: Sequence[Message], run: Run) -> list[Message]:
    """Return the messages for a model that writes calls into its text: its own notation, and results as plain messages.

    A small model that sees its calls in another form than its own takes them for somebody else's, and one that sees
    itself repeat a call goes on repeating it: such a call is shown once, with both results. After results that it has
    only now, it is reminded of the task and told to answer: otherwise it calls the next tool, needed or not.
    """
    texts = prompt_texts(detect_language(run.task))
    view: list[Message] = []
    text_ids: set[str] = set()
    previous = ""
    for message in messages:
        calls = message.get("tool_calls") or ()
        source = run.call_sources.get(calls[0]["id"]) if calls else None
        if source is not None:
            text_ids |= {call["id"] for call in calls}
            if source in ("", previous) and view[-1]["role"] == "user":
                continue
            message = assistant_message(source)
        elif message["role"] == "tool" and message["tool_call_id"] in text_ids:
            text = texts.result.format(tool=message.get("name"), text=message["content"])
            is_next = view[-1]["role"] == "user"
            message = user_message(f"{view.pop()['content']}\n{text}" if is_next else text)
        previous = source or (previous if message["role"] == "user" else "")
        view.append(message)
    is_new = messages[-1].get("tool_call_id") in text_ids
    if is_new and run.steps and run.steps[-1].is_success:
        reminder = texts.after_results.format(task=shorten(run.task, MAX_REMINDER_LENGTH))
        view[-1] = user_message(f"{view[-1]['content']}\n{reminder}")
    return view


def ask_for_answer_from_results(run: Run) -> list[Message]:
    """Return the task with the results so far, without the calls: a model that sees repeated calls continues them."""
    texts = prompt_texts(detect_language(run.task))
    at = max(i for i, message in enumerate(run.messages) if message == user_message(run.task))
    before = [m for m in run.messages[:at] if m["role"] != "tool" and not m.get("tool_calls")]
    results: dict[str, str] = {}
    for step in reversed(run.steps):
        if step.record_id or not step.is_success:  # the result of a repeated call is that of the first one
            results.setdefault(
                f"{step.tool_id} {as_text(step.arguments)}", shorten(step.text_for_model, MAX_FOUND_LENGTH)
            )
    results = dict(reversed(results.items()))
    lines = [texts.result.format(tool=call, text=text) for call, text in results.items()]
    return [*before, user_message("\n\n".join([run.task, "\n".join(lines), texts.answer_now]))]


# Replies that are no answers

_OWN_RESULT = "<tool_response>"
_NAMED_CALL = lazy_pattern(
    r"^[`\s]*(?:json\s*)?[\[\s]*\{\s*\"(?:name|tool|function)\"\s*:\s*\"([^\"]{1,100})\"\s*,"
    r"\s*\"(?:arguments|parameters)\"\s*:"
)
_NAME_ALONE = lazy_pattern(
    r"[`\s]*(?:json\s*)?[\[\s]*\{\s*\"(?:name|tool|function)\"\s*:\s*\"([^\"]{1,100})\"\s*\}[\]\s`]*"
)
_SENTENCE_END = lazy_pattern(r"(?<=[.!?:])\s+|(?<=[。！？：])|\n+")
_ANNOUNCEMENT = lazy_pattern(
    r"(?:(?:first|next|now|then|okay|sure|to [^,]{1,80}),?\s+)*(?:i will|i'll|i'm going to|i am going to|i need to|"
    r"let me|let's|we will|we need to|we can|i can|i should|you can)\b"
    r"|(?:首先|接下来|现在|好的|为了[^，]{1,40})?[，,]?\s*(?:我将|我会|我需要|我要|让我|我们需要|我们可以|我可以)",
    re.IGNORECASE,
)
_TOOL_WORD = lazy_pattern(r"\b(?:tool|function)s?\b|工具|函数", re.IGNORECASE)


def _check_answer(text: str, run: Run, offer: ToolOffer) -> ParsedReply:
    """Return the answer, or a correction for an empty text, a made-up result, the task itself or an intention.

    Nothing but the name of a tool is a call without arguments.
    """
    if (match := _NAME_ALONE.fullmatch(text)) and match[1] in offer.actions:
        return ParsedReply(calls=[ToolCall(name=match[1], arguments={})], source=text)
    texts = prompt_texts(detect_language(run.task))
    repeats_task = " ".join(text.split()) == " ".join(run.task.split())
    if not remove_empty_markup(text) or _OWN_RESULT in text or repeats_task:
        return ParsedReply(correction=texts.no_answer)
    if match := _NAMED_CALL.match(text):
        tools = ", ".join(str(schema["function"]["name"]) for schema in offer.schemas[:_MAX_NAMES])
        return ParsedReply(correction=texts.unknown_tool.format(tool=match[1], tools=tools))
    last = next(filter(None, reversed(_SENTENCE_END.split(text.strip()))), "")
    is_intention = _ANNOUNCEMENT.match(last) and (
        last.endswith((":", "：", "…", "...")) or _TOOL_WORD.search(last) or any(name in last for name in offer.actions)
    )
    return ParsedReply(text=text, correction=texts.no_answer if is_intention else None, is_answer_if_repeated=True)


_MAX_ID_LENGTH: Final = 200


def assign_call_ids(run: Run, calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls, each with an id that no other call of the run has."""
    numbered: list[ToolCall] = []
    for call in calls:
        number = len(numbered) + 1
        if len(call.id) > _MAX_ID_LENGTH or not call.id.isprintable():
            call = replace(call, id="")
        while not call.id or call.id in run.call_ids:
            call = replace(call, id=f"call_{run.turns + 1}_{number}")
            number += 1
        run.call_ids.add(call.id)
        numbered.append(call)
    return numbered


def reject_calls_over_limit(run: Run, calls: list[ToolCall], limits: RunLimits) -> list[ToolCall]:
    """Return the calls, with an error set on those beyond a limit, so that they are not executed."""
    allowed = limits.calls_per_turn
    if limits.calls is not None:
        allowed = min(allowed, limits.calls - len(run.steps))
    error = f"This call was not made: {allowed} more calls are allowed now. Make fewer calls in one turn."
    return [*calls[:allowed], *(replace(call, error=error) for call in calls[allowed:])]


class TextStreamer:
    """Receives the text of a reply while it is written, and streams it to a listener.

    Text that is, or may become, a tool call is held back. A model that goes on writing after its calls is stopped: it
    would make up their results, and small ones find no end.
    """

    def __init__(self, listener: OnEvent | None, tools: KnownTools, *, may_end: bool = False) -> None:
        self._listener, self._tools, self._may_end = listener, tools, may_end
        self._reader = ToolCallReader(tools)
        self._length = 0
        self._text, self._checked_length = "", 0

    @classmethod
    def create(cls, listener: OnEvent | None, tools: KnownTools, model: Model) -> TextStreamer | None:
        """None if nobody needs the text before the reply is complete: some models reply faster then."""
        may_end = can_end_reply(model)
        return cls(listener, tools, may_end=may_end) if listener is not None or may_end else None

    def __call__(self, piece: str) -> None:
        if self._listener is not None:
            self._send(self._reader.feed(piece))
        if self._may_end:
            self._text += piece
            self._end_after_calls()

    def restart(self) -> bool:
        """Receive the reply from its start, because the model is asked again; False if text was shown already."""
        if self._length:
            return False
        self._reader = ToolCallReader(self._tools)
        self._text, self._checked_length = "", 0
        return True

    def finish(self) -> None:
        """Send the text that was held back and turned out not to be a call."""
        if self._listener is not None:
            self._send(self._reader.close().text[self._length :])

    def _send(self, text: str) -> None:
        if text and self._listener is not None:
            self._length += len(text)
            self._listener(TextPiece(text))

    def _end_after_calls(self) -> None:
        length = self._text.rfind("\n") + 1
        if length < self._checked_length + _CHECKED_LENGTH:
            return
        self._checked_length = length
        rest = parse_model_text(self._text[:length], self._tools, until_prose=True).rest
        # A tag, or a bracket or a fence that is not closed, may be of a call that is not finished.
        is_open = any(rest.count(first) != rest.count(last) for first, last in ("{}", "[]", "()"))
        if rest and not (is_open or "<" in rest or rest.count("```") % 2 == 1):
            self._may_end = False
            raise EndReply


_CHECKED_LENGTH: Final = 40
"""Of so many new characters, in whole lines, it is checked whether they follow a call."""


# Typed answers: the type that the answer of a run must have, its JSON Schema, and checking what a model wrote

MAX_OUTPUT_ATTEMPTS: Final = 3
"""The run is stopped after this many answers that are not of the type."""
_WRAPPER: Final = "answer"
"""The property for an answer that is not an object: the APIs of models enforce only schemas of objects."""
_MAX_PROBLEMS: Final = 10


class OutputType:
    """The type of an answer: a pydantic model, a dataclass, a TypedDict, or a type such as `int` or `list[str]`."""

    def __init__(self, output: Any) -> None:
        from pydantic import TypeAdapter  # only runs with a type need it
        from pydantic.errors import PydanticUserError

        self.name = getattr(output, "__name__", None) or str(output)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(output)
            schema = self._adapter.json_schema()
        except (PydanticUserError, TypeError, ValueError) as error:
            raise SetupError(
                f"The answer cannot be of the type {self.name!r}: {error_text(error).splitlines()[0]} "
                "Use a pydantic model, a dataclass, a TypedDict, or a plain type such as int or list[str]."
            ) from None
        self._is_text = output is str
        self._is_wrapped = schema.get("type") != "object"
        if self._is_wrapped:
            definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
            schema = {"type": "object", "properties": {_WRAPPER: schema}, "required": [_WRAPPER], **definitions}
        self.schema: dict[str, Any] = _close_objects(schema)

    @property
    def instruction(self) -> str:
        """Return what the model is told about the form of its answer."""
        if self._is_text:
            return ""
        return (
            "Your final answer must be one JSON value that follows this JSON Schema, without any other text:\n"
            + encode_json(self.schema).decode()
        )

    def parse(self, text: str) -> Any:
        """Return the value in an answer. Raises ValueError with all problems if it is not of the type."""
        if self._is_text:
            return text
        problem = "it contains no JSON"
        try:
            values = [json.loads(text)]
        except ValueError:
            values = list(find_json_values(text))
        for value in values:
            if self._is_wrapped and isinstance(value, dict) and set(value) == {_WRAPPER}:
                value = value[_WRAPPER]
            try:
                return self._adapter.validate_json(encode_json(value))
            except ValueError as error:
                problem = _describe_problems(error)
        raise ValueError(problem)

    def format(self, value: Any) -> str:
        """Return the value as text: JSON, except that text stays as it is."""
        return value if isinstance(value, str) else self._adapter.dump_json(value).decode()

    def constrain(self, request: ModelRequest, *, is_retry: bool) -> ModelRequest:
        """Return the request. Where only the answer is missing, the model's API makes the reply follow the schema.

        Not while there are tools to call: many servers that enforce a schema make no calls then.
        """
        has_tools = any(schema["function"]["name"] not in CONTROL_TOOLS for schema in request.tools)
        if self._is_text or (has_tools and not is_retry):
            return request
        return replace(request, tools=(), answer_schema=self.schema)


def _close_objects(schema: Any) -> Any:
    """Return the schema with every object closed: the strict modes of APIs require it."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {keyword: _close_objects(value) for keyword, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def find_json_values(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text, in order."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(100):
        starts = [start for start in (text.find("{", at), text.find("[", at)) if start >= 0]
        if not starts:
            return
        at = min(starts)
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            if not is_nested_deeper(value, MAX_DEPTH):
                yield value


def _describe_problems(error: ValueError) -> str:
    problems = getattr(error, "errors", None)
    if problems is None:
        return error_text(error)
    lines = []
    for problem in problems(include_url=False, include_input=False)[:_MAX_PROBLEMS]:
        where = ".".join(map(str, problem["loc"]))
        lines.append(f"{where}: {problem['msg']}" if where else str(problem["msg"]))
    return "; ".join(lines)
