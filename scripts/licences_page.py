"""Writes docs/licences.md: the licences of the packages that Ferrule depends on, as their metadata state them.

`--check` only reports packages that are missing from the page, or whose licence it does not state as installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/licences.md"
INTRODUCTION = """\
# Licences

Ferrule has the MIT licence. These are the packages that it depends on directly, with the licences that their metadata
state. Nothing of them is part of Ferrule's own packages: they are installed beside it. This page is generated
(`make docs`)."""
_NAME = re.compile(r"[\w.-]+")
_UNKNOWN = "not stated"
_LICENCE_OF_CLASSIFIER = "License :: OSI Approved :: "
_MAX_LENGTH = 60


def read_requirements() -> dict[str, list[str]]:
    """The names of packages by what needs them: `ferrule` itself, or an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name != "all"}
    return {"ferrule": _names(project["dependencies"])} | {extra: _names(each) for extra, each in extras.items()}


def _names(requirements: Iterable[str]) -> list[str]:
    return [match[0] for each in requirements if (match := _NAME.match(each))]


def find_licence(package: Distribution) -> str:
    """The expression, the classifiers or the short text of a package's metadata."""
    metadata = package.metadata
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if "License ::" in each]
    text = str(metadata.get("License") or "").strip()
    is_short = "\n" not in text and len(text) <= _MAX_LENGTH
    return metadata.get("License-Expression") or ", ".join(classifiers) or (text if is_short else "") or _UNKNOWN


def read_licences() -> dict[str, str]:
    """The licences of the packages that are installed here."""
    licences = {}
    for name in sorted({name for names in read_requirements().values() for name in names}):
        try:
            licences[name] = find_licence(distribution(name))
        except PackageNotFoundError:
            continue
    return licences


def write_page() -> str:
    licences = read_licences()
    needed_by: dict[str, list[str]] = {}
    for user, names in read_requirements().items():
        for name in names:
            needed_by.setdefault(name, []).append("always" if user == "ferrule" else f"`{user}`")
    rows = [f"| {name} | {licences[name]} | {', '.join(needed_by[name])} |" for name in sorted(needed_by)]
    return "\n".join([INTRODUCTION, "", "| package | licence | needed by |", "| --- | --- | --- |", *rows]) + "\n"


def check_page() -> list[str]:
    """What is wrong with the page. Packages that are not installed here are only looked for by their names."""
    page = PAGE.read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| ([\w.-]+) \| (.+?) \| .+ \|$", page, re.M))
    names = {name for names in read_requirements().values() for name in names}
    problems = [f"{name} is missing" for name in sorted(names - stated.keys())]
    problems += [f"{name} is not needed" for name in sorted(stated.keys() - names - {"package", "---"})]
    licences = read_licences().items()
    return problems + [f"{name} states {each!r}" for name, each in licences if stated.get(name, each) != each]


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(write_page(), encoding="utf-8")
    elif problems := check_page():
        sys.exit(f"{PAGE.name}: {'; '.join(problems)}. Run `make docs`.")
