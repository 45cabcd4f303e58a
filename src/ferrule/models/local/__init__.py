"""A model that runs in this process, from a GGUF file."""

from ferrule.models.local.model import LocalModel

__all__ = ["LocalModel"]
