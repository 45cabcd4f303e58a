"""Language models behind one small protocol."""

from ferrule.models.anthropic_model import AnthropicModel
from ferrule.models.choose import choose_model
from ferrule.models.closing import close_model
from ferrule.models.model import Model, ModelReply, ModelRequest
from ferrule.models.openai_model import OpenAIModel
from ferrule.models.patience import PatientModel

__all__ = [
    "AnthropicModel",
    "Model",
    "ModelReply",
    "ModelRequest",
    "OpenAIModel",
    "PatientModel",
    "choose_model",
    "close_model",
]
