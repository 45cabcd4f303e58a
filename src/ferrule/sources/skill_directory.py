"""Folders of skills, loaded and loaded again like folders of tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ferrule.sources.directory import DirectorySource
from ferrule.sources.folder import PYTHON_SUFFIXES
from ferrule.sources.loaded import LoadedFile, LoadReport, report_of
from ferrule.sources.skill_file import read_skill_file
from ferrule.sources.skill_paths import skill_files
from ferrule.sources.skill_python import read_python_skills


class SkillsDirectory:
    """The skills of one or more folders. Of two of one name the first is kept, and the other reported."""

    def __init__(self, *directories: str | Path) -> None:
        self._folders = [DirectorySource(each, files=skill_files, read=_read) for each in directories]

    def load(self) -> LoadReport:
        """All skills as the files are now. Python files are run: call it in a thread when others must not wait."""
        reports = {folder.directory: folder.load() for folder in self._folders}
        whole = report_of(
            (directory, LoadedFile(tools=report.tools, errors=report.errors)) for directory, report in reports.items()
        )
        return replace(whole, files=tuple(path for report in reports.values() for path in report.files))


def _read(path: Path) -> LoadedFile:
    return read_python_skills(path) if path.suffix.lower() in PYTHON_SUFFIXES else read_skill_file(path)
