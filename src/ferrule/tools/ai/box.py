"""`ask_model` and `summarize` as a project sets them up."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.errors import SetupError
from ferrule.models import choose_model
from ferrule.sources.function import tool_of
from ferrule.spec import Limits, Tool
from ferrule.tools.ai.ask_model import ModelAsker
from ferrule.tools.ai.config import AskModelConfig, SummarizeConfig
from ferrule.tools.ai.models import ChooseModel, Models, lack_of
from ferrule.tools.ai.summarize import Summarizer

_USAGE: Final = {"type": "object", "description": "Requests and tokens that the model has cost."}
ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "model": {"type": "string"},
        "usage": _USAGE,
        "cut": {"type": "boolean", "description": "The answer was longer than allowed."},
    },
}
SUMMARY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "made_by": {"enum": ["model", "extract"], "description": "extract: sentences of the text itself."},
        "model": {"type": "string"},
        "parts": {"type": "integer", "description": "In how many parts the text was read."},
        "usage": _USAGE,
        "note": {"type": "string"},
        "untrusted": {"type": "boolean"},
    },
}


def ai_tools(
    ask_model: AskModelConfig | None = None,
    summarize: SummarizeConfig | None = None,
    *,
    choose: ChooseModel | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """`ask_model` and `summarize`. `choose` makes models of yours out of the words of the configuration."""
    asking, shortening = ask_model or AskModelConfig(), summarize or SummarizeConfig()
    models = Models(choose or choose_model, environ)
    asker = ModelAsker(asking, models)
    summarizer = Summarizer(shortening, shortening.model or asking.model, models)
    known = ", ".join(asking.models) or "there is only one"
    question = _made(asker.ask_model, models, ANSWER, asking.timeout, model=f"which model to ask: {known}")
    return [
        replace(question, needs="" if choose is not None else _needs(asking, environ)),
        _made(summarizer.summarize, models, SUMMARY, shortening.timeout),
    ]


class _Held:
    """The target of a function that asks models, which are closed with it."""

    def __init__(self, function: Callable[..., Any], models: Models) -> None:
        self._function, self._models = function, models

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function

    async def aclose(self) -> None:
        await self._models.aclose()


def _made(function: Callable[..., Any], models: Models, output: dict[str, Any], timeout: float, **said: str) -> Tool:
    """The tool with what only the configuration knows; `said` describes parameters."""
    made = tool_of(function)
    [capability] = made.spec.capabilities
    properties = dict(capability.schema["properties"])
    for name, description in said.items():
        properties[name] = {**properties[name], "description": description}
    schema = {**capability.schema, "properties": properties}
    spec = replace(
        made.spec,
        capabilities=[replace(capability, parameters=schema, output=output)],
        limits=Limits(timeout=timeout),
    )
    return replace(made, spec=spec, target=_Held(function, models))


def _needs(config: AskModelConfig, environ: Mapping[str, str]) -> str:
    """What is missing for the usual model, unless another one can be chosen."""
    words = [config.model, *config.models.values()]
    lacking = [_lack(word, environ) for word in words]
    return lacking[0] if all(lacking) else ""


def _lack(word: str | None, environ: Mapping[str, str]) -> str:
    try:
        return lack_of(word, environ)
    except SetupError as error:
        return f"another model: {error}"
