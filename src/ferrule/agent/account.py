"""What a run that ends without an answer has to say for itself."""

from __future__ import annotations

from typing import Final

from ferrule.content import as_text
from ferrule.describe.sentences import on_one_line, within
from ferrule.memory import ExecutionContext

STEPS: Final = 8
_LENGTH: Final = 160
_FOUND: Final = 500

_ENGLISH: Final = {
    "stopped": "I could not finish this: {reason}.",
    "tried": "What I tried:",
    "nothing": "No tool was called.",
    "more": "… and {count} more calls before that",
    "good": "{call}: done",
    "bad": "{call}: failed ({error})",
    "found": "The last thing I found out: {text}",
}
_CHINESE: Final = {
    "stopped": "任务未能完成：{reason}。",
    "tried": "已尝试的步骤：",
    "nothing": "没有调用任何工具。",
    "more": "… 以及此前的 {count} 次调用",
    "good": "{call}：成功",
    "bad": "{call}：失败（{error}）",
    "found": "最后得到的信息：{text}",
}


def account(context: ExecutionContext, reason: str, *, language: str = "en") -> str:
    """Why it stopped, what was tried, and what is known."""
    words = _CHINESE if language == "zh" else _ENGLISH
    said = [words["stopped"].format(reason=reason.rstrip(".。"))]
    steps = context.executed_steps
    if not steps:
        return f"{said[0]} {words['nothing']}"
    said.append(words["tried"])
    if len(steps) > STEPS:
        said.append(f"- {words['more'].format(count=len(steps) - STEPS)}")
    for step in steps[-STEPS:]:
        call = within(f"{step['tool_id']} {as_text(step['parameters'])}", _LENGTH)
        error = within(on_one_line(str(step["result"])), _LENGTH)
        said.append("- " + (words["good"] if step["success"] else words["bad"]).format(call=call, error=error))
    if context.current_observations:
        said.append(words["found"].format(text=within(context.current_observations[-1].strip(), _FOUND)))
    return "\n".join(said)
