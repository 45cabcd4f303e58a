"""From Python's type hints and docstrings to JSON Schema, and from JSON arguments back to Python values."""

from ferrule.core.schema.hints import NoTarget, Secret, Target
from ferrule.core.schema.signature import FunctionSignature, read_function

__all__ = ["FunctionSignature", "NoTarget", "Secret", "Target", "read_function"]
