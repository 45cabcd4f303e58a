"""Running the Python blocks of a Markdown page, as a reader would paste them."""

import ast
import asyncio
import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def python_blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def run_block(code: str, names: dict[str, Any] | None = None, *, name: str = "page") -> dict[str, Any]:
    """Run a block that may await at the top level; returns the names it left behind."""
    module = types.ModuleType(f"block_{name}")
    module.__dict__.update(names or {})
    sys.modules[module.__name__] = module  # dataclasses and pickle look their module up
    try:
        compiled = compile(code, f"<{name}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        made = eval(compiled, module.__dict__)
        if inspect.iscoroutine(made):
            asyncio.run(made)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__
