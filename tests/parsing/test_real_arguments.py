"""Calls with arguments that people outside have recorded, in the notations of many models.

Skipped where the shared data is not there.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrule.parsing import KnownTools, parse_tool_calls

DATA = Path(__file__).parents[3] / "shared/data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs shared/data beside the project")

Calls = list[tuple[str, dict[str, Any]]]


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def recorded_calls() -> list[Calls]:
    """The calls of dialogues one by one and of plans together, with arguments that their tools have."""
    parameters = {row["name"]: row["parameters"]["properties"] for row in known_rows()}
    single = [
        [(turn["name"], turn["arguments"])]
        for dialogue in rows("dialogues/dialogues.jsonl")
        for turn in dialogue["turns"]
        if turn["role"] == "tool_call"
    ]
    plans = [[(step["tool"], step["arguments"]) for step in row["steps"]] for row in rows("plans/seal_plans.jsonl")]
    return [calls for calls in [*single, *plans] if all(set(a) <= set(parameters.get(name, ())) for name, a in calls)]


def known_rows() -> list[dict[str, Any]]:
    return [*rows("dialogues/tools.jsonl"), *rows("plans/seal_tools.jsonl")]


def named(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def elements(arguments: dict[str, Any], opening: str, closing: str) -> str:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return "".join(opening.format(key) + text + closing for key, text in texts.items())


def join(form: Callable[..., str], separator: str = "\n") -> Callable[[Calls], str]:
    return lambda calls: separator.join(form(*call) for call in calls)


NOTATIONS: dict[str, Callable[[Calls], str]] = {
    "json": lambda calls: json.dumps([named(*call) for call in calls], indent=1),
    "python": join(python),
    "python list": lambda calls: f"[{', '.join(python(*call) for call in calls)}]",
    "fenced json": lambda calls: f"```json\n{json.dumps([named(*call) for call in calls])}\n```",
    "fenced python": lambda calls: f"```python\n{join(python)(calls)}\n```",
    "hermes": join(lambda name, a: f"<tool_call>\n{json.dumps(named(name, a))}\n</tool_call>"),
    "glm": join(
        lambda name, a: (
            f"<tool_call>{name}\n"
            + elements(a, "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n")
            + "</tool_call>"
        )
    ),
    "glm 4": join(lambda name, a: f"{name}\n{json.dumps(a)}"),
    "qwen coder": join(
        lambda name, a: (
            f"<tool_call>\n<function={name}>\n"
            + elements(a, "<parameter={}>\n", "\n</parameter>\n")
            + "</function>\n</tool_call>"
        )
    ),
    "invoke": join(
        lambda name, a: (
            f'<invoke name="{name}">\n' + elements(a, '<parameter name="{}">', "</parameter>\n") + "</invoke>"
        )
    ),
    "mistral": join(lambda name, a: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a)}", ""),
    "llama": join(lambda name, a: f"<|python_tag|>{json.dumps(named(name, a))}<|eom_id|>"),
    "react": lambda calls: f"Thought: Look.\nAction: {calls[0][0]}\nAction Input: {json.dumps(calls[0][1])}",
}
AROUND = {
    "alone": "{}",
    "after words": "I will look that up.\n\n{}",
    "before a token": "{}<|im_end|>",
    "before </s>": "{}</s>",
    "after thinking, before words": "<think>I could call it.</think>\n{}\n\nPlease wait for the result.",
}


def plain(calls: Calls) -> list[tuple[str, dict[str, str]]]:
    """Values as text: between tags, a number and its digits look the same, and so do a list and its text."""

    def text_of(value: Any) -> str:
        return "".join((value if isinstance(value, str) else json.dumps(value)).replace('"', "'").split()).lower()

    return [(name, {key: text_of(value) for key, value in arguments.items()}) for name, arguments in calls]


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_recorded_calls_are_read_in_every_notation(around: str):
    known = KnownTools(known_rows())
    failures, count = [], 0
    for calls in recorded_calls()[::7]:
        for notation, write in NOTATIONS.items():
            expected = calls[:1] if notation == "react" else calls
            text = around.format(write(calls))
            count += 1
            read = [(call.name, call.arguments) for call in parse_tool_calls(text, known)]
            if plain(read) != plain(expected):
                failures.append(text)
    assert count > 1_000 and len(failures) <= 0.005 * count, failures[:3]
