"""What the sandbox does not have, and what a script does instead."""

from __future__ import annotations

import re
from typing import Final

MODULES: Final = (
    *("asyncio", "base64", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal", "functools"),
    *("hashlib", "itertools", "json", "math", "random", "re", "sys", "time", "tomllib", "typing", "unicodedata"),
)
"""What a script can import; `os` and `pathlib` are there too, but there are no files for them."""

_NO_FILES: Final = "The sandbox has no files: give data in `inputs`, or call a tool that reads or writes files."
_NO_MODULE: Final = f"The sandbox has these modules only: {', '.join(MODULES)}. Write the few lines you need yourself"
_NO_AWAIT: Final = (
    "Call tools plainly (x = tool(…)), or write await right before each call; in a script that imports asyncio "
    "every call of a tool must be awaited."
)
_HINTS: Final = (
    (r"^ModuleNotFoundError|^ImportError", f"{_NO_MODULE}, or call a tool."),
    (r"not yet support class inheritance", "Write functions, plain classes without a base, or dataclasses."),
    (r"not yet support yield", "Build a list, or write a generator expression."),
    (r"not yet support the 'del'", "Use pop() or remove(), or assign None."),
    (r"not yet support", "Write it with plain functions, loops, lists and dictionaries."),
    (r"^PermissionError: Permission denied", _NO_FILES),
    (r"os\.environ|os\.getenv", "The sandbox has no environment variables: give what is needed in `inputs`."),
    (r"^AttributeError: module '(?:os|sys)'", "The sandbox cannot reach the system it runs on."),
    (r"^AttributeError: module '", "The sandbox has only the usual part of this module: write what is missing."),
    (r"name '(?:input|breakpoint|help)' is not", "Nobody can be asked while a script runs: give it in `inputs`."),
    (r"name '__import__' is not|name 'compile' is not", "Write the code itself, with import statements at its top."),
    (r"'coroutine' object|external_future|be awaited|an awaitable is required", _NO_AWAIT),
    (
        r"cannot suspend in this synchronous",
        "Call tools in a loop or a comprehension, not in map(), filter() or sort().",
    ),
    (r"^RecursionError", "Write a loop in place of the recursion."),
)


def hint_for(message: str) -> str:
    """What to do about an error that is the sandbox's own; empty for one that any Python would raise."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message[:500])), "")
