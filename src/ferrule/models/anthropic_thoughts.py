"""Claude's thoughts, sent back to it.

Between its calls Claude goes on from what it thought before them, and wants those blocks back as they were. Messages
have no place for them, so the model keeps them here. It takes a thought only behind the very words it followed: if
the system text, the tools or any message before it has changed, all from there on are left out, which is allowed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from ferrule.content import encode_json
from ferrule.models.anthropic_messages import Block, Turn

_THOUGHTS = ("thinking", "redacted_thinking")


class Thoughts:
    """Answers with thoughts in them, by what they answered."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._answers: OrderedDict[bytes, list[Block]] = OrderedDict()

    def keep(self, parameters: dict[str, Any], answer: list[Block]) -> None:
        """Remember the answer to this request."""
        if not any(block["type"] in _THOUGHTS for block in answer):
            return
        digest = _begin(parameters)
        for turn in parameters["messages"]:
            digest.update(encode_json(turn))
        self._answers[digest.digest()] = answer
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def restore(self, parameters: dict[str, Any]) -> None:
        """Put the thoughts back into the turns of the assistant, as far as nothing before them has changed."""
        if not self._answers:
            return
        turns: list[Turn] = parameters["messages"]
        digest = _begin(parameters)
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                answer = self._answers.get(digest.digest())
                if answer is not None and _visible(answer) == _visible(turn["content"]):
                    turns[i] = {**turn, "content": answer}
            digest.update(encode_json(turns[i]))


def _begin(parameters: dict[str, Any]) -> Any:
    unmarked = [
        [
            {name: value for name, value in block.items() if name != "cache_control"}
            for block in parameters.get(part, ())
        ]
        for part in ("system", "tools")
    ]
    return sha256(encode_json(unmarked))


def _visible(blocks: Sequence[Block]) -> tuple[str, list[Block]]:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text.strip(), [block for block in blocks if block["type"] == "tool_use"]
