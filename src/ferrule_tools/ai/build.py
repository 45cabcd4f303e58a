"""Builds `ask_model` and `summarize` from the configuration of a project."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.core.spec import Limits, Tool
from ferrule.kinds.function.code_digest import digest_of_code
from ferrule.kinds.function.tools import tool_of
from ferrule.models import choose_model
from ferrule.models.keys import model_environment
from ferrule_tools.ai.ask_model import AskModelConfig, ModelAsker
from ferrule_tools.ai.models import ModelCache, ModelFactory, describe_missing_setup
from ferrule_tools.ai.summarize import SummarizeConfig, Summarizer

_USAGE_SCHEMA: Final = {"type": "object", "description": "Requests and tokens that the model has cost."}
_ANSWER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "model": {"type": "string"},
        "usage": _USAGE_SCHEMA,
        "cut": {"type": "boolean", "description": "The answer was longer than allowed."},
    },
}
_SUMMARY_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "made_by": {"enum": ["model", "extract"], "description": "extract: sentences of the text itself."},
        "model": {"type": "string"},
        "parts": {"type": "integer", "description": "In how many parts the text was read."},
        "usage": _USAGE_SCHEMA,
        "note": {"type": "string"},
        "untrusted": {"type": "boolean"},
    },
}


def ai_tools(
    ask_model: AskModelConfig | None = None,
    summarize: SummarizeConfig | None = None,
    *,
    choose: ModelFactory | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """`ask_model` and `summarize`. `choose` creates models of your own from the specs of the configuration."""
    environ = model_environment(environ)
    ask_config, summarize_config = ask_model or AskModelConfig(), summarize or SummarizeConfig()
    models = ModelCache(choose or choose_model, environ)
    asker = ModelAsker(ask_config, models)
    summarizer = Summarizer(summarize_config, summarize_config.model or ask_config.model, models)
    names = ", ".join(ask_config.models) or "there is only one"
    question = _build_tool(
        asker.ask_model, models, _ANSWER_SCHEMA, ask_config.timeout, model=f"which model to ask: {names}"
    )
    return [
        replace(question, needs="" if choose is not None else _describe_needs(ask_config, environ)),
        _build_tool(summarizer.summarize, models, _SUMMARY_SCHEMA, summarize_config.timeout),
    ]


class _ModelTarget:
    """The target of a function that asks models, which are closed with it."""

    def __init__(self, function: Callable[..., Any], models: ModelCache) -> None:
        self._function, self._models = function, models

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function

    @property
    def code_digest(self) -> str:
        return digest_of_code(self._function)

    async def aclose(self) -> None:
        await self._models.aclose()


def _build_tool(
    function: Callable[..., Any], models: ModelCache, output: dict[str, Any], timeout: float, **descriptions: str
) -> Tool:
    """The tool with what only the configuration knows; `descriptions` of parameters by name."""
    built = tool_of(function)
    [capability] = built.spec.capabilities
    properties = dict(capability.schema["properties"])
    for name, description in descriptions.items():
        properties[name] = {**properties[name], "description": description}
    schema = {**capability.schema, "properties": properties}
    spec = replace(
        built.spec,
        capabilities=[replace(capability, parameters=schema, output=output)],
        limits=Limits(timeout=timeout),
    )
    return replace(built, spec=spec, target=_ModelTarget(function, models))


def _describe_needs(config: AskModelConfig, environ: Mapping[str, str]) -> str:
    """What is missing for the default model, unless another one can be chosen."""
    missing = [describe_missing_setup(spec, environ) for spec in (config.model, *config.models.values())]
    return missing[0] if all(missing) else ""
