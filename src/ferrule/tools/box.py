"""The tools in the box that need setting up: what `[tools]` in `ferrule.toml` says, and the tools it makes.

All of them are always there. One that cannot be used yet says what it needs, is shown to no model, and can be found
by whoever asks which tools there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ferrule.executors.http.address_guard import AddressGuard
from ferrule.executors.mcp.elicitation import OnElicit
from ferrule.spec import Tool
from ferrule.store import ToolKnowledgeStore
from ferrule.tools.browser.box import BrowserConfig, browser_tools
from ferrule.tools.conversation import conversation_tools
from ferrule.tools.files import PROTECTED, workspace_tools

NO_WORKSPACE: Final = 'a folder to work in: set [tools] workspace = "." in ferrule.toml'


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxConfig:
    """What the tools in the box may use."""

    workspace: str | None = None
    """The folder whose files tools may read and change."""
    browser_navigator: BrowserConfig = field(default_factory=BrowserConfig)


def box_tools(
    config: BoxConfig | None = None,
    *,
    root: Path | None = None,
    protected: Sequence[str] = PROTECTED,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
    store: ToolKnowledgeStore | None = None,
    ask: OnElicit | None = None,
) -> list[Tool]:
    """All tools that can be set up, ready or not. Relative paths start at `root`.

    `store` has the conversations, and `ask` asks the person who is there.
    """
    config, root, guard = config or BoxConfig(), root or Path(), guard or AddressGuard()
    tools = [
        *_file_tools(config.workspace, root, protected),
        *browser_tools(config.browser_navigator, guard=guard, environ=environ),
        *conversation_tools(store or ToolKnowledgeStore(), ask),
    ]
    return [replace(tool, source="builtin") for tool in tools]


def _file_tools(workspace: str | None, root: Path, protected: Sequence[str]) -> list[Tool]:
    if workspace is None:
        return [replace(tool, needs=NO_WORKSPACE) for tool in workspace_tools(root)]
    folder = root / workspace
    tools = workspace_tools(folder, protected=_within(folder, root, protected))
    if not folder.is_dir():
        needs = f"the folder {workspace!r}, which is the [tools] workspace of ferrule.toml and not there. Make it"
        return [replace(tool, needs=needs) for tool in tools]
    return tools


def _within(folder: Path, root: Path, protected: Sequence[str]) -> list[str]:
    """The protected paths, which start at the root, as paths of the workspace; those outside it need no protection."""
    top = folder.resolve()
    found = [(root / path).resolve() for path in protected]
    return [str(path.relative_to(top)) for path in found if path.is_relative_to(top) and path != top]
