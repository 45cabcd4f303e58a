"""Tools described in YAML files.

One document describes one tool; a file may have several documents. All problems of a file are reported together, each
with its line and what to write instead. See docs/yaml-tools.md for the format.
"""

from __future__ import annotations

from pathlib import Path

from ferrule.errors import LoadError, SetupError
from ferrule.kinds.function.targets import ImportedTarget
from ferrule.kinds.source import (
    YAML_SUFFIXES,
    LoadedFile,
    LoadReport,
    combine_into_report,
    digest,
    digest_file,
    load_or_report,
    read_limited_file,
    tool_files,
)
from ferrule.kinds.yaml.reader import read_documents

MAX_FILE_SIZE = 1_000_000


class ToolConfigLoader:
    """Loads the YAML files of a folder. An invalid file is reported and never stops the others."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = None if directory is None else Path(directory)

    def load(self, directory: str | Path | None = None) -> LoadReport:
        folder = self.directory if directory is None else Path(directory)
        if folder is None:
            raise SetupError("No folder was given. Use ToolConfigLoader('tools') or loader.load('tools')")
        if not folder.is_dir():
            return LoadReport(errors=(LoadError("there is no such folder", path=folder),))
        return combine_into_report(
            (path, load_or_report(read_tool_file, path)) for path in tool_files(folder, YAML_SUFFIXES)
        )

    def load_file(self, path: str | Path) -> LoadReport:
        return combine_into_report([(Path(path), load_or_report(read_tool_file, Path(path)))])


def read_tool_file(path: Path) -> LoadedFile:
    """Read the tools of one YAML file, or what is wrong with it."""
    from ferrule.kinds.yaml.tool_reader import read_tool  # imports pydantic: only when a file is read

    try:
        content = read_limited_file(path, MAX_FILE_SIZE, hint="split it into several files")
        documents = read_documents(content, path)
        tools = [tool for document in documents if (tool := read_tool(document)) is not None]
    except LoadError as error:
        return LoadedFile(errors=(error,))
    errors = [error for document in documents for error in document.errors]
    if errors:
        return LoadedFile(errors=tuple(sorted(errors, key=lambda error: error.line or 1)))
    digests = {path: digest(content)}
    # With the Python files next to the YAML file that belong to a tool, or would if they existed.
    for target in (tool.target for tool in tools if isinstance(tool.target, ImportedTarget)):
        if target.version is None:
            candidate = path.with_name(f"{target.module}.py")
            digests[candidate] = digest_file(candidate)
        else:
            digests |= {each: digest(source) for each, source in target.version.sources.items()}
    return LoadedFile(tools=tuple(tools), digests=digests)
