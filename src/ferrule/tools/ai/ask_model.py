"""`ask_model`: a model as a tool."""

from __future__ import annotations

from typing import Any

from ferrule.errors import ExecutionFailed, ModelError, Retry, SetupError
from ferrule.models import Model, PatientModel
from ferrule.names import did_you_mean
from ferrule.sources.tool_options import tool
from ferrule.spec import ToolCategory
from ferrule.tools.ai.asking import ask, failure_of, told_usage
from ferrule.tools.ai.config import AskModelConfig
from ferrule.tools.ai.models import Models
from ferrule.tools.ai.texts import sayable


class ModelAsker:
    """Asks the models of a project."""

    def __init__(self, config: AskModelConfig, models: Models) -> None:
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
            prompt: everything it has to know, and what it shall do
            system: who it is and how it answers
            model: which model to ask
        """
        asked, role = sayable(prompt), sayable(system or "")
        if not asked.strip():
            raise Retry("The prompt is empty: say what to ask the model.")
        if (length := len(asked) + len(role)) > self._config.max_prompt:
            raise Retry(
                f"The prompt has {length:,} characters; {self._config.max_prompt:,} is the most. Send less of it, or "
                "summarize it first."
            )
        with self._models.secrets.hidden_in_errors():
            chosen = self._chosen(model)
            try:
                reply = await ask(_asked_once(chosen), asked, system=role, max_tokens=self._config.max_tokens)
            except ModelError as error:
                raise failure_of(error) from error
            except SetupError as error:  # its package is not there, or its weights
                raise ExecutionFailed(f"The model {chosen.name!r} cannot be asked: {error}") from error
        said: dict[str, Any] = {"answer": reply.text.strip(), "model": chosen.name, "usage": told_usage(reply.usage)}
        return {**said, "cut": True} if reply.finish_reason == "length" else said

    def _chosen(self, name: str | None) -> Model:
        known = self._config.models
        if name is not None and name not in known:
            listed = f" The names are: {', '.join(known)}." if known else ""
            near = did_you_mean(name, known)
            raise Retry(f"There is no model {name!r} to choose.{near}{listed} Leave it out for the usual one.")
        word = self._config.model if name is None else known[name]
        try:
            return self._models.get(word)
        except SetupError as error:
            raise ExecutionFailed(f"The model cannot be made: {error}") from error


def _asked_once(model: Model) -> Model:
    """Without further attempts of its own: the engine makes them, within the time of the call."""
    return model.model if isinstance(model, PatientModel) else model
