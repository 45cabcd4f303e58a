"""`ask_model`: a model as a tool."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferrule.core.names import did_you_mean
from ferrule.core.spec import ToolCategory
from ferrule.errors import ExecutionFailed, ModelError, Retry, SetupError
from ferrule.kinds.function.decorator import tool
from ferrule.models import Model, RetryingModel
from ferrule_tools.ai.extractive_summary import replace_surrogates
from ferrule_tools.ai.models import (
    ModelCache,
    check_model_spec,
    check_positive,
    convert_model_error,
    request_reply,
    usage_output,
)


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
            try:
                reply = await request_reply(
                    _disable_retries(chosen), prompt, system=system, max_tokens=self._config.max_tokens
                )
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


def _disable_retries(model: Model) -> Model:
    """Turn off the model's own retries: the engine retries, within the timeout of the call."""
    return model.model if isinstance(model, RetryingModel) else model
