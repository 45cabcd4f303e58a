"""What the offline model says, in English and in Chinese."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ferrule.models.offline.catalogue import Offer
from ferrule.models.offline.parameter import Parameter

_LONGEST_DESCRIPTION = 80
_ASKED = (
    re.compile(r"To use (?P<tool>\S+) I still need: "),
    re.compile(r"要使用 (?P<tool>\S+)，还需要："),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    result: str
    failure: str
    missing: str
    no_result: str
    not_done: str
    no_tool: str
    nothing_asked: str
    nearest: str
    who: str

    def missing_parameters(self, offer: Offer, missing: Sequence[Parameter]) -> str:
        shown = [f"{p.name} ({p.description})" if p.description else p.name for p in missing]
        return self.missing.format(tool=offer.spoken, names="; ".join(shown))

    def cannot(self, step: str, near: Sequence[Offer]) -> str:
        """That nothing fits, what is nearest, who says so, and where to get more."""
        lines = [self.no_tool.format(step=step) if step else self.nothing_asked]
        if near:
            lines.append(self.nearest + "\n" + "\n".join(f"- {o.spoken}: {_short(o.description)}" for o in near))
        return "\n".join([*lines, self.who])


ENGLISH = Wording(
    result="{tool}: {text}",
    failure="{tool} failed: {text}",
    missing="To use {tool} I still need: {names}.",
    no_result="I did not do “{step}”: the step before it gave nothing to go on with.",
    not_done="I did nothing about “{step}”: no tool fits it.",
    no_tool="I can't answer “{step}”: no tool here fits it well enough to be called.",
    nothing_asked="I can't tell what to do: there is no question.",
    nearest="The nearest tools are:",
    who=(
        "This is Ferrule's offline model: it picks tools by their words and knows nothing itself. For a real model set "
        "OPENAI_API_KEY or ANTHROPIC_API_KEY, point OPENAI_BASE_URL at a server of your own, or install ferrule[local]."
    ),
)
CHINESE = Wording(
    result="{tool}：{text}",
    failure="{tool} 失败：{text}",
    missing="要使用 {tool}，还需要：{names}。",
    no_result="没有执行“{step}”：上一步没有给出可用的结果。",
    not_done="没有处理“{step}”：没有合适的工具。",
    no_tool="我无法回答“{step}”：这里没有足够合适的工具可以调用。",
    nothing_asked="不知道该做什么：没有问题。",
    nearest="最接近的工具：",
    who=(
        "这是 Ferrule 的离线模型：它只按词语挑选工具，自己什么都不知道。要用真正的模型，请设置 OPENAI_API_KEY 或 "
        "ANTHROPIC_API_KEY，或让 OPENAI_BASE_URL 指向你自己的服务器，或安装 ferrule[local]。"
    ),
)


def tool_asked_about(said: str) -> str | None:
    """The tool whose missing arguments an earlier answer asked for."""
    match = next((found for pattern in _ASKED if (found := pattern.search(said))), None)
    return match["tool"] if match else None


def _short(description: str) -> str:
    first = re.split(r"(?<=[.。])\s|\n", description.strip(), maxsplit=1)[0]
    return first if len(first) <= _LONGEST_DESCRIPTION else first[: _LONGEST_DESCRIPTION - 1] + "…"
