"""What the local model is told, for each of the small decisions a turn is made of.

Small models cannot choose, fill in and answer in one go. They are asked one thing at a time: which tool (or none), then
its arguments; each answer is held to what it may be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ferrule.messages import Message, system_message, text_of_message, user_message
from ferrule.models.offline.catalogue import Offer
from ferrule.models.offline.conversation import Done

ANSWER = "answer"
"""What stands for no tool."""


def conversation(messages: Sequence[Message]) -> list[Message]:
    """The messages as models without tools know them: calls and their answers are told in words."""
    told: list[Message] = []
    for message in messages:
        role, text = message.get("role"), text_of_message(message)
        if role == "tool":
            role, text = "user", f"The tool {message.get('name') or ''} answered: {text}"
        elif message.get("tool_calls"):
            text = "\n".join(filter(None, [text, *map(_told_call, message["tool_calls"])]))
        if told and told[-1]["role"] == role:
            told[-1] = {"role": role, "content": f"{told[-1]['content']}\n{text}"}
        else:
            told.append({"role": str(role), "content": text})
    return told


def choice_of_tool(question: str, offers: Sequence[Offer], done: Sequence[Done]) -> list[Message]:
    """Which tool? Two examples show what is meant, made of the tools at hand."""
    listed = "\n".join(f"- {offer.name}: {_first_line(offer.description)}" for offer in offers)
    first = offers[0]
    return [
        system_message(f"Choose the right tool.\n{listed}\n- {ANSWER}: talk with the user without a tool"),
        user_message("Question: Hi, how are you?\nTool:"),
        {"role": "assistant", "content": ANSWER},
        user_message(f"Question: Please {_first_line(first.description).lower()}\nTool:"),
        {"role": "assistant", "content": first.name},
        user_message(f"Question: {question}{_known(done)}\nTool:"),
    ]


def arguments_of(question: str, offer: Offer, schema: dict[str, Any], done: Sequence[Done]) -> list[Message]:
    """What is the tool called with?"""
    told = json.dumps(schema.get("properties", {}), ensure_ascii=False)
    asked = f"Write the arguments of the tool {offer.name} as JSON. {offer.description}\nParameters: {told}"
    return [system_message(asked), user_message(f"{question}{_known(done)}")]


def _known(done: Sequence[Done]) -> str:
    return "".join(f"\nThe tool {one.name} answered: {one.answer}" for one in done)


def _told_call(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    return f"I call the tool {function.get('name')} with {function.get('arguments')}."


def _first_line(description: str) -> str:
    return description.strip().splitlines()[0] if description.strip() else "use it"
