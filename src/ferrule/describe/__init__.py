"""Words about tools for a model."""

from ferrule.describe.engine import DescriptionEngine
from ferrule.describe.meta_tools import meta_tools
from ferrule.describe.tokens import estimate_tokens

__all__ = ["DescriptionEngine", "estimate_tokens", "meta_tools"]
