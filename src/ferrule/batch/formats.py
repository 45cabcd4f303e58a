"""Trajectories in the formats of others: ATIF, OpenAI's chat format with tools, ShareGPT.

ATIF is built with the models of the package `atif`, which check it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ferrule.core.messages import text_of_message
from ferrule.errors import MissingExtra

Trajectory = Mapping[str, Any]

ATIF_VERSION: Final = "ATIF-v1.8"
_OPENAI_KEYS: Final = ("role", "content", "tool_calls", "tool_call_id", "name")


def convert(trajectory: Trajectory, form: str) -> dict[str, Any]:
    """Convert a trajectory into one of the `FORMATS`."""
    return FORMATS[form](trajectory)


# OpenAI


def to_openai(trajectory: Trajectory) -> dict[str, Any]:
    """Write `{"messages": […], "tools": […]}`, as for fine-tuning, with the id and the metadata beside them."""
    messages = [
        {
            key: message[key]
            for key in _OPENAI_KEYS
            if key in message and not (key == "name" and message["role"] == "tool")
        }
        for message in trajectory["messages"]
    ]
    names = ("id", "state", "failure", "model", "run_id", "usage", "cost", "seconds")
    described = {name: trajectory.get(name) for name in names}
    if trajectory.get("metadata"):
        described["task_metadata"] = trajectory["metadata"]
    tools = {"tools": trajectory["tools"]} if trajectory["tools"] else {}
    return {"messages": messages, **tools, "metadata": described}


# ShareGPT


def to_sharegpt(trajectory: Trajectory) -> dict[str, Any]:
    """Write `{"conversations": [{"from": …, "value": …}], "system": …, "tools": …}`: the speakers take turns."""
    messages = trajectory["messages"]
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        turn = _to_turn(message)
        last = turns[-1] if turns else None
        if last is not None and (last["from"], turn["from"]) == ("observation", "human"):
            last["value"].append(turn["value"])  # a remark of the agent about the results
        elif last is not None and last["from"] == turn["from"]:
            is_list = isinstance(last["value"], list)
            last["value"] = last["value"] + turn["value"] if is_list else f"{last['value']}\n\n{turn['value']}"
        else:
            turns.append(turn)
    for turn in turns:
        if turn["from"] in ("function_call", "observation") and isinstance(turn["value"], list):
            values = turn["value"]
            turn["value"] = json.dumps(values[0] if len(values) == 1 else values, ensure_ascii=False)
    system = "\n\n".join(text_of_message(m) for m in messages if m["role"] == "system")
    tools = [schema["function"] for schema in trajectory["tools"]]
    return {
        "id": trajectory["id"],
        "conversations": turns,
        "system": system,
        "tools": json.dumps(tools, ensure_ascii=False) if tools else "",
    }


def _to_turn(message: Mapping[str, Any]) -> dict[str, Any]:
    text = text_of_message(message)
    if message["role"] == "tool":
        return {"from": "observation", "value": [text]}
    if calls := message.get("tool_calls"):
        values = [
            {"name": call["function"]["name"], "arguments": _parse_arguments(call["function"]["arguments"])}
            for call in calls
        ]
        return {"from": "function_call", "value": values, **({"text": text} if text else {})}
    return {"from": "gpt" if message["role"] == "assistant" else "human", "value": text}


def _parse_arguments(text: Any) -> Any:
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        return {"unparsed": text}
    return arguments if isinstance(arguments, dict) else {"unparsed": text}


# ATIF


def to_atif(trajectory: Trajectory) -> dict[str, Any]:
    """Build an ATIF document with the system prompt, the tool definitions, and every call beside its step."""
    try:
        import atif
    except ImportError:
        raise MissingExtra("atif", "batch") from None
    usage, is_usd = trajectory.get("usage") or {}, trajectory.get("currency", "USD") == "USD"
    document = {
        "schema_version": ATIF_VERSION,
        "session_id": trajectory.get("run_id"),
        "trajectory_id": trajectory["id"],
        "agent": {
            "name": "ferrule",
            "version": trajectory.get("ferrule_version", ""),
            "model_name": trajectory.get("model"),
            "tool_definitions": trajectory["tools"] or None,
        },
        "steps": list(_atif_steps(trajectory)),
        "final_metrics": {
            "total_prompt_tokens": usage.get("input_tokens"),
            "total_completion_tokens": usage.get("output_tokens"),
            "total_cached_tokens": usage.get("cached_tokens"),
            "total_cost_usd": trajectory.get("cost") if is_usd else None,
            "total_steps": sum(message["role"] != "tool" for message in trajectory["messages"]),
        },
        "extra": {
            name: trajectory.get(name)
            for name in ("task", "state", "answer", "reason", "failure", "metadata", "refused_by_memory", "totals")
        },
    }
    return atif.Trajectory.model_validate(document).to_json_dict()


def _atif_steps(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    messages = trajectory["messages"]
    records = {call["tool_call_id"]: call for call in trajectory.get("calls", ()) if call["tool_call_id"]}
    requests = _requests_by_message(messages, trajectory.get("requests", ()))
    results = {m["tool_call_id"]: m for m in messages if m["role"] == "tool"}
    for step_id, (index, message) in enumerate(((i, m) for i, m in enumerate(messages) if m["role"] != "tool"), 1):
        source = {"assistant": "agent", "system": "system"}.get(message["role"], "user")
        step: dict[str, Any] = {"step_id": step_id, "source": source, "message": text_of_message(message)}
        if source == "agent":
            calls = message.get("tool_calls") or ()
            if calls:
                step["tool_calls"] = [
                    {
                        "tool_call_id": call["id"],
                        "function_name": call["function"]["name"],
                        "arguments": _parse_arguments(call["function"]["arguments"]),
                        "extra": {"record": dict(records[call["id"]])} if call["id"] in records else None,
                    }
                    for call in calls
                ]
                step["observation"] = {
                    "results": [
                        {"source_call_id": call["id"], "content": text_of_message(results[call["id"]])}
                        for call in calls
                        if call["id"] in results
                    ]
                }
            if (request := requests.get(index)) is not None:
                step |= _atif_request(request, trajectory)
        yield step


def _requests_by_message(
    messages: Sequence[Mapping[str, Any]], requests: Sequence[Mapping[str, Any]]
) -> dict[int, Mapping[str, Any]]:
    """Find the request that each message of the model answers. Requests before an interruption are not known."""
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    answered = [request for request in requests if "reply" in request]
    number = min(len(replies), len(answered))
    return dict(zip(replies[len(replies) - number :], answered[len(answered) - number :], strict=True))


def _atif_request(request: Mapping[str, Any], trajectory: Trajectory) -> dict[str, Any]:
    reply = request["reply"]
    usage = reply.get("usage", {})
    metrics = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("cached_tokens"),
        "cost_usd": reply.get("cost") if trajectory.get("currency", "USD") == "USD" else None,
    }
    shown_fields = {"context", "messages", "tools", "tool_choice", "temperature", "max_tokens", "attempts", "seconds"}
    return {
        "timestamp": datetime.fromtimestamp(request["at"], UTC).isoformat(),
        "metrics": metrics,
        "llm_call_count": 1,
        "reasoning_content": reply.get("reasoning") or None,
        "extra": {"request": {name: value for name, value in request.items() if name in shown_fields}},
    }


FORMATS: dict[str, Callable[[Trajectory], dict[str, Any]]] = {
    "atif": to_atif,
    "openai": to_openai,
    "sharegpt": to_sharegpt,
    "ferrule": dict,
}
