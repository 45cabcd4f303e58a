"""`ask_model`: a model as a tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrule.core.content import replace_surrogates
from ferrule.core.names import did_you_mean
from ferrule.core.spec import Tool, ToolCategory
from ferrule.errors import ExecutionFailed, ModelError, Retry, SetupError
from ferrule.kinds.function.code_digest import digest_of_code
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule.models import Model, RetryingModel, choose_model
from ferrule.models.keys import model_environment
from ferrule_tools._tool_setup import configure_tool
from ferrule_tools.ai.models import (
    ModelCache,
    ModelFactory,
    check_model_spec,
    check_positive,
    convert_model_error,
    describe_missing_setup,
    request_reply,
    usage_output,
)
from ferrule_tools.ai.summarize import SummarizeConfig, Summarizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModelConfig:
    """The section `[tools.ask_model]`: which models can be asked, and how much."""

    model: str | None = None
    """`openai:gpt-5.4-mini`, `anthropic:…`, `ollama:…`; None: the environment determines it."""
    models: dict[str, str] = field(default_factory=dict)
    """Further models that the caller may choose by name: `fast = "openai:gpt-5.4-mini"`."""
    max_tokens: int = 4_096
    """The most tokens in an answer."""
    max_prompt: int = 100_000
    """Characters of a prompt, with its system text."""
    timeout: float = 120.0
    """Seconds an answer may take."""

    def __post_init__(self) -> None:
        check_model_spec(self.model)
        for name, spec in self.models.items():
            if not name.strip():
                raise SetupError(f"models: {spec!r} needs a name")
            check_model_spec(spec)
        check_positive(max_tokens=self.max_tokens, max_prompt=self.max_prompt, timeout=self.timeout)


class ModelAsker:
    """Asks the models of a project."""

    def __init__(self, config: AskModelConfig, models: ModelCache) -> None:
        self._config, self._models = config, models

    @tool(
        category=ToolCategory.AI,
        tags=["ai", "model", "llm", "ask", "generate", "text", "模型", "提问", "生成"],
        read_only=True,
        examples=[
            {"prompt": "Translate into French: Where is the station?"},
            {"prompt": "把这句话改写得更正式：明天见。", "system": "你是一位编辑，只给出结果。"},
        ],
    )
    async def ask_model(self, prompt: str, system: str | None = None, model: str | None = None) -> dict[str, Any]:
        """Ask a language model: to write, rewrite, translate, classify or judge a text. 向语言模型提问。

        It knows nothing but what the prompt says, remembers nothing, and can use no tools.

        Args:
            prompt: everything it has to know, and what it should do
            system: who it is and how it answers
            model: which model to ask
        """
        prompt, system = replace_surrogates(prompt), replace_surrogates(system or "")
        if not prompt.strip():
            raise Retry("The prompt is empty: say what to ask the model.")
        if (length := len(prompt) + len(system)) > self._config.max_prompt:
            raise Retry(
                f"The prompt has {length:,} characters; the limit is {self._config.max_prompt:,}. Send less of it, or "
                "summarize it first."
            )
        with self._models.secrets.hide_in_errors():
            chosen = self._choose_model(model)
            # Without the model's own retries: the engine retries, within the timeout of the call.
            plain = chosen.model if isinstance(chosen, RetryingModel) else chosen
            try:
                reply = await request_reply(plain, prompt, system=system, max_tokens=self._config.max_tokens)
            except ModelError as error:
                raise convert_model_error(error) from error
            except SetupError as error:  # its package or its weights are missing
                raise ExecutionFailed(f"The model {chosen.name!r} cannot be asked: {error}") from error
        output = {"answer": reply.text.strip(), "model": chosen.name, "usage": usage_output(reply.usage)}
        return {**output, "cut": True} if reply.finish_reason == "length" else output

    def _choose_model(self, name: str | None) -> Model:
        specs = self._config.models
        if name is not None and name not in specs:
            listed = f" The names are: {', '.join(specs)}." if specs else ""
            hint = did_you_mean(name, specs)
            raise Retry(f"There is no model {name!r} to choose.{hint}{listed} Leave it out for the default one.")
        try:
            return self._models.get(self._config.model if name is None else specs[name])
        except SetupError as error:
            raise ExecutionFailed(f"The model cannot be created: {error}") from error


# ---- setup

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


class _ModelTarget:
    """The target of a function that asks models, which are closed with the tool."""

    def __init__(self, function: Callable[..., Any], models: ModelCache) -> None:
        self._function = function
        self.code_digest = digest_of_code(function)
        self.aclose = models.aclose

    def function(self, action: str, /) -> Callable[..., Any]:
        return self._function


def _make_tool(function: Callable[..., Any], models: ModelCache) -> Tool:
    return replace(tool_of(function), target=_ModelTarget(function, models))
