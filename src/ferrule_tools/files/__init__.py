"""The files of one folder as tools: `library.register(*workspace_tools("notes"))`."""

from ferrule_tools.files.path_rules import PROTECTED, SECRET
from ferrule_tools.files.processor import workspace_tools
from ferrule_tools.files.workspace import Workspace

__all__ = ["PROTECTED", "SECRET", "Workspace", "workspace_tools"]
