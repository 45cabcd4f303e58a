"""How a question is answered: with a plan, in the loop of the agent, or by the model alone.

By its words, in this order:
1. it asks for several things one after another, or for things that different tools do → plan; but where one of them
   needs the result of another and the model cannot think → loop, in which results are handed on;
2. some tool may fit it → loop;
3. it wants nothing but words (write, explain, translate, thanks), or there are no tools → direct, if the model can
   think;
4. else → loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, cast

from ferrule.describe.sentences import first_sentence
from ferrule.errors import ModelError, SetupError
from ferrule.library import UnifiedToolLibrary
from ferrule.messages import Usage, system_message, user_message
from ferrule.models.model import Model, ModelRequest, can_think
from ferrule.models.offline.steps import is_remark, parts_of, speaks_of_result
from ferrule.names import did_you_mean
from ferrule.tools.conversation import HISTORY_TOOL
from ferrule.workflow.planning import json_values_in

Strategy: TypeAlias = Literal["plan", "loop", "direct"]
STRATEGIES: Final = ("plan", "loop", "direct")
BY_MODEL: Final = "model"

_AND = re.compile(r",?\s+and\s+|\s+as\s+well\s+as\s+|[,，、;；]\s*|以及|还有|和|与|并且?")
_ONLY_WORDS = re.compile(
    r"\s*(?:please\s+|can\s+you\s+|could\s+you\s+)?(?:write|compose|draft|rewrite|rephrase|paraphrase|proofread|summari[sz]e"
    r"|translate|explain|describe|define|thanks?\b|thank\s+you|tell\s+me\s+a\s+(?:joke|story|riddle)|what\s+does\b.*\bmean)"
    r"|\s*(?:请|帮我|请帮我)?(?:写(?:一|个|篇|首|封|段)|改写|润色|总结|概括|翻译|解释|说明|描述|谢谢|多谢|讲(?:一?个)(?:笑话|故事))",
    re.IGNORECASE,
)
_MATERIAL = re.compile(r"[:：\n]")
_LONGEST_REQUEST: Final = 2_000
_CUTS: Final = 8
"""So many `and`s are looked at."""
_SHOWN: Final = 10
_ASK: Final = """\
How should the question be answered?
- plan: it needs several steps or several tools
- loop: one tool, or a few that depend on what the one before gives
- direct: no tool helps; you can answer out of yourself
Tools: {tools}
Answer with JSON: {{"strategy": "plan" | "loop" | "direct"}}"""
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"strategy": {"type": "string", "enum": list(STRATEGIES)}},
    "required": ["strategy"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChosen:
    """How the question will be answered, and why."""

    strategy: Strategy
    reason: str
    usage: Usage = Usage()
    run_id: str = ""
    """Of the run that begins: whoever breaks it off can go on with it."""


def check_strategy(name: str | None) -> None:
    """SetupError for a strategy that does not exist."""
    known = (*STRATEGIES, BY_MODEL)
    if name is not None and name not in known:
        raise SetupError(
            f"There is no strategy {name!r}.{did_you_mean(name, known)} Write plan, loop, direct, or model to let the "
            "model choose; without one the question decides."
        )


async def choose_strategy(
    question: str, wanted: str | None, library: UnifiedToolLibrary, model: Model
) -> StrategyChosen:
    """As it is wanted; else as the question's words say. `model` lets a model that can think choose."""
    if wanted is None or (wanted == BY_MODEL and not can_think(model)):
        return by_question(question, library, thinks=can_think(model))
    if wanted == BY_MODEL:
        return await _by_model(question, library, model)
    return StrategyChosen(strategy=cast(Strategy, wanted), reason="it was asked for")


def by_question(question: str, library: UnifiedToolLibrary, *, thinks: bool) -> StrategyChosen:
    """As the words of the question say."""
    request = _request_in(question)
    parts = [part for part in parts_of(request) if not is_remark(part)]
    if not thinks and any(map(speaks_of_result, parts[1:])):
        return StrategyChosen(
            strategy="loop", reason="one thing needs the result of another, which takes thinking to plan"
        )
    if len(parts) > 1:
        return StrategyChosen(strategy="plan", reason=f"it asks for {len(parts)} things")
    if _tools_differ(request, library):
        return StrategyChosen(strategy="plan", reason="it needs several tools")
    if _best_tool(request, library) is not None:
        return StrategyChosen(strategy="loop", reason="a tool may fit it")
    if thinks and not any(tool_id != HISTORY_TOOL for tool_id in library.engine.registry.snapshot().by_id):
        return StrategyChosen(strategy="direct", reason="there are no tools")
    if thinks and _ONLY_WORDS.match(question):
        return StrategyChosen(strategy="direct", reason="it wants words, and no tool speaks of it")
    return StrategyChosen(strategy="loop", reason="it is one request")


async def _by_model(question: str, library: UnifiedToolLibrary, model: Model) -> StrategyChosen:
    hits = library.index.search(question, _SHOWN)
    tools = "; ".join(f"{hit.tool.id} ({first_sentence(hit.tool.spec.description)})" for hit in hits)
    messages = [system_message(_ASK.format(tools=tools or "none that speaks of it")), user_message(question)]
    usage = Usage()
    try:
        reply = await model.generate(ModelRequest(messages=messages, answer_schema=_SCHEMA))
        usage = reply.usage
        for said in json_values_in(reply.text):
            if isinstance(said, dict) and said.get("strategy") in STRATEGIES:
                return StrategyChosen(strategy=said["strategy"], reason="the model chose it", usage=usage)
    except ModelError:
        pass
    chosen = by_question(question, library, thinks=True)
    return StrategyChosen(strategy=chosen.strategy, reason=chosen.reason, usage=usage)


def _request_in(question: str) -> str:
    """What is asked for, without the text it is to be done with: `translate: …` has the sentences of others in it."""
    if _ONLY_WORDS.match(question):
        question = _MATERIAL.split(question, maxsplit=1)[0]
    return question[:_LONGEST_REQUEST]


def _tools_differ(question: str, library: UnifiedToolLibrary) -> bool:
    """Whether both sides of an `and` are for tools, and not for the same one."""
    for cut in islice(_AND.finditer(question), _CUTS):
        left = _best_tool(question[: cut.start()], library)
        right = _best_tool(question[cut.end() :], library)
        if left is not None and right is not None and left != right:
            return True
    return False


def _best_tool(text: str, library: UnifiedToolLibrary) -> str | None:
    hits = library.index.search(text, 1) if text.strip() else []
    return hits[0].tool.id if hits else None
