"""The files of one folder as tools: `library.register(*workspace_tools("notes"))`."""

from ferrule.tools.files.box import workspace_tools
from ferrule.tools.files.workspace import PROTECTED

__all__ = ["PROTECTED", "workspace_tools"]
