"""A folder of tools: its YAML and Python files, loaded and loaded again.

Every load is a whole new list of tools, to be swapped in by whoever keeps them. Files that have not changed are not
read again and give the very same `Tool` objects. A file that is broken now keeps the tools of its last good version
and reports what is wrong with it; the tools of a file that is gone are gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ferrule.errors import LoadError
from ferrule.sources.config_file import read_tool_file
from ferrule.sources.folder import PYTHON_SUFFIXES, tool_files
from ferrule.sources.loaded import LoadedFile, LoadReport, load_or_report, report_of
from ferrule.sources.python_file import read_python_file


def read_file(path: Path) -> LoadedFile:
    """The tools of a YAML or a Python file."""
    return read_python_file(path) if path.suffix.lower() in PYTHON_SUFFIXES else read_tool_file(path)


class DirectorySource:
    """The tools of one folder. A folder that is not there has none."""

    def __init__(
        self,
        directory: str | Path,
        *,
        files: Callable[[Path], list[Path]] = tool_files,
        read: Callable[[Path], LoadedFile] = read_file,
    ) -> None:
        """`files` says which files of the folder count, `read` what they bring."""
        self.directory = Path(directory)
        self._files, self._read = files, read
        self._good: dict[Path, LoadedFile] = {}
        self._lock = threading.Lock()

    def load(self) -> LoadReport:
        """All tools as the files are now. Python files are run: call it in a thread when others must not wait."""
        with self._lock:
            try:
                files = self._files(self.directory)
            except OSError as error:
                return self._as_before(error)
            loaded = [(path, self._load_file(path)) for path in files]
            self._good = {path: self._good[path] for path in files if path in self._good}
            return report_of(loaded)

    def _load_file(self, path: Path) -> LoadedFile:
        last_good = self._good.get(path)
        if last_good is not None and last_good.is_current:
            return last_good
        fresh = load_or_report(self._read, path)
        if not fresh.errors:
            self._good[path] = fresh
            return fresh
        return replace(fresh, tools=last_good.tools if last_good else ())

    def _as_before(self, error: OSError) -> LoadReport:
        report = report_of(self._good.items())
        unreadable = LoadError(f"the folder cannot be read: {error.strerror or error}", path=self.directory)
        return replace(report, errors=(*report.errors, unreadable))
