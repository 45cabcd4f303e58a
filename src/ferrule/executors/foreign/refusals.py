"""What a foreign tool's own types say about arguments that its schema had let through."""

from __future__ import annotations

from typing import Any

from ferrule.call import ValidationError
from ferrule.errors import InvalidArguments


def invalid_arguments(refusal: Any) -> InvalidArguments:
    """A pydantic `ValidationError` as ours. The values are left out: one may be secret."""
    errors = [
        ValidationError(
            path=".".join(map(str, found["loc"])),
            message=f"{found['msg']}.",
            expected=found["type"],
            received=None,
            code=found["type"],
        )
        for found in refusal.errors(include_url=False, include_context=False, include_input=False)
    ]
    return InvalidArguments(" ".join(map(str, errors)), [error.to_dict() for error in errors])
