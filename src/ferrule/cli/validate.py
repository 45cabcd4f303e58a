"""What `ferrule tools validate` looks at: one file, a folder, or all that a project has."""

from __future__ import annotations

import re
from pathlib import Path

from ferrule.config import FerruleConfig
from ferrule.errors import LoadError
from ferrule.executors.http.address_guard import AddressGuard
from ferrule.sources import DirectorySource, LoadReport
from ferrule.sources.directory import read_file
from ferrule.sources.folder import PYTHON_SUFFIXES, YAML_SUFFIXES
from ferrule.sources.loaded import LoadedFile, digest_of, load_or_report, report_of
from ferrule.sources.mcp_file import McpFile
from ferrule.sources.openapi_source import OpenApiDocuments
from ferrule.sources.openapi_tool import read_openapi
from ferrule.sources.skill_directory import SkillsDirectory

_OPENAPI = re.compile(rb"""^["']?(openapi|swagger)["']?[ ]*:""", re.M)


def check_path(path: Path) -> LoadReport:
    """The tools of a folder or a file, which may be an OpenAPI document."""
    if path.is_dir():
        return DirectorySource(path).load()
    return report_of([(path, load_or_report(_read, path))])


def check_project(config: FerruleConfig) -> LoadReport:
    """All the files of a project: tools, documents, skills and servers. No server is started."""
    said = config.placed_engine_config
    reports = [
        DirectorySource(said.tools_directory).load(),
        OpenApiDocuments(said.openapi, config.address_guard).load(),
        SkillsDirectory(*said.skills_directories).load(),
        *([McpFile(said.mcp_file).load()] if said.mcp_file is not None else ()),
    ]
    return LoadReport(
        tools=tuple(tool for report in reports for tool in report.tools),
        errors=tuple(error for report in reports for error in report.errors),
    )


def _read(path: Path) -> LoadedFile:
    if not _is_openapi(path):
        return read_file(path)
    try:
        return LoadedFile(tools=(read_openapi(path, guard=AddressGuard()),), made_from={path: digest_of(path)})
    except LoadError as error:
        return LoadedFile(errors=(error,))


def _is_openapi(path: Path) -> bool:
    if path.suffix.lower() not in YAML_SUFFIXES:
        return path.suffix.lower() not in PYTHON_SUFFIXES
    with path.open("rb") as file:
        return _OPENAPI.search(file.read()) is not None
