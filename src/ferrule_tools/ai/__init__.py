"""Models as tools: `library.register(*ai_tools())`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ferrule.core.spec import Tool
from ferrule.kinds.function.tools import ResourceTarget, tool_of
from ferrule.models import choose_model
from ferrule.models.choose import ModelFactory
from ferrule.models.keys import model_environment
from ferrule_tools._tool_setup import configure_tool
from ferrule_tools.ai.ask_model import AskModelConfig, ModelAsker, ModelCache, describe_missing_setup
from ferrule_tools.ai.summarize import SummarizeConfig, Summarizer

__all__ = ["AskModelConfig", "SummarizeConfig", "ai_tools"]

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
    """Return `ask_model` and `summarize`. `choose` creates your own models from the specs of the configuration."""
    environ = model_environment(environ)
    ask_config, summarize_config = ask_model or AskModelConfig(), summarize or SummarizeConfig()
    models = ModelCache(choose or choose_model, environ)
    summarizer = Summarizer(summarize_config, summarize_config.model or ask_config.model, models)
    specs = [] if choose is not None else [ask_config.model, *ask_config.models.values()]
    missing = [describe_missing_setup(spec, environ) for spec in specs]
    names = ", ".join(ask_config.models) or "there is only one"
    return [
        configure_tool(
            _make_tool(ModelAsker(ask_config, models).ask_model, models),
            output=_ANSWER_SCHEMA,
            timeout=ask_config.timeout,
            parameters={"model": {"description": f"which model to ask: {names}"}},
            needs=missing[0] if missing and all(missing) else "",
        ),
        configure_tool(
            _make_tool(summarizer.summarize, models), output=_SUMMARY_SCHEMA, timeout=summarize_config.timeout
        ),
    ]


def _make_tool(function: Callable[..., Any], models: ModelCache) -> Tool:
    """Make the tool of a function that asks models, which are closed with the tool."""
    return replace(tool_of(function), target=ResourceTarget(function, models))
