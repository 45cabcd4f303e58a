"""Language models behind one small protocol."""

from ferrule.core.model import Model, ModelReply, ModelRequest
from ferrule.models.anthropic import AnthropicModel
from ferrule.models.choose import choose_model
from ferrule.models.openai import OpenAIModel
from ferrule.models.retry import RetryingModel, close_model

__all__ = [
    "AnthropicModel",
    "Model",
    "ModelReply",
    "ModelRequest",
    "OpenAIModel",
    "RetryingModel",
    "choose_model",
    "close_model",
]
