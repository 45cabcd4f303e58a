"""Patterns of paths, and which paths of a workspace are secret or protected."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, lru_cache
from typing import Final, TypeAlias

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import Retry

Parts: TypeAlias = tuple[str, ...]
"""The names of a path relative to the workspace; empty for the workspace itself."""

SECRET: Final = (
    # Ferrule and MCP servers
    *(".ferrule", "ferrule.toml", "mcp.json", ".mcp.json", "**/.config/ferrule", "**/.local/state/ferrule"),
    "**/.cache/ferrule",
    # variables and passwords
    *(".env", ".env.*", ".envrc", ".netrc", ".npmrc", ".pypirc", ".git-credentials", "**/.git/config"),
    # keys for other machines and clouds
    *(".ssh", ".aws", ".kube", ".docker", ".gnupg", "**/.config/gcloud"),
)
"""Stores and files that hold credentials: they cannot be read, changed, listed or searched."""

PROTECTED: Final = (
    # Ferrule
    *("/tools", "/skills"),
    # repositories and their hooks
    *(".git", ".hg", ".svn", ".gitmodules", ".githooks", ".husky", ".pre-commit-config.y*ml", "lefthook.y*ml"),
    # build servers
    *(".github", ".gitlab", ".gitlab-ci.y*ml", ".circleci", ".buildkite", ".travis.yml", ".drone.yml"),
    *("azure-pipelines*.yml", "bitbucket-pipelines.yml", "Jenkinsfile"),
    # editors and agents
    *(".vscode", ".idea", ".run", ".cursor", ".claude", ".codex", ".gemini", ".windsurf", ".continue", ".kiro"),
    *(".roo", ".amazonq", ".opencode", "opencode.json*", ".zed", ".devcontainer", "*.code-workspace"),
    *(".vimrc", ".exrc", ".nvim.lua"),
    # shells and tools that they start
    *("mise*.toml", ".mise*", ".profile", ".bashrc", ".bash_*", ".zsh*", ".zprofile"),
)
"""What determines which code Ferrule, git, editors, shells and build servers run: it can be read, not changed."""

# Patterns: `*.py`, `docs/*.md`, `src/**/test_*.py`, `*.{yaml,yml}`, `/top`

_MAX_PATTERN: Final = 300
_MAX_CHOICES: Final = 32
_CHOICE: Final = lazy_pattern(r"\{([^{}]*)\}")


def compile_pattern(pattern: str) -> Callable[[Parts], bool]:
    """Compile a pattern into a function that checks a path. A pattern without a slash matches names in any folder."""
    if len(pattern) > _MAX_PATTERN:
        raise Retry(f"A pattern of {len(pattern)} characters is too long: write one such as src/**/*.py.")
    choices = [_GlobPattern(each) for each in _expand_choices(pattern)]
    return lambda parts: any(choice.matches(parts) for choice in choices)


def is_recursive_pattern(pattern: str) -> bool:
    """Return whether a pattern can match below the first folder."""
    return "/" in pattern.strip("/") or "**" in pattern


class _GlobPattern:
    def __init__(self, pattern: str) -> None:
        names = [name for name in pattern.removeprefix("./").split("/") if name]
        names = names if len(names) > 1 or pattern.startswith("/") else ["**", *names]
        # Compiled name by name: each is matched in linear time, whatever stars it has.
        self._names = [None if name == "**" else re.compile(translate(name)) for name in names]

    def matches(self, parts: Parts) -> bool:
        """Track which positions of the pattern are reachable after each part, like a small automaton."""
        reached = self._skip_double_stars({0})
        for part in parts:
            further = set()
            for at in reached:
                name = self._names[at] if at < len(self._names) else ...
                if name is None:
                    further.add(at)
                elif name is not ... and name.match(part):
                    further.add(at + 1)
            reached = self._skip_double_stars(further)
        return len(self._names) in reached

    def may_match_below(self, parts: Parts) -> bool:
        """Return whether the pattern may match below this path, and only there: a `**` matches in any folder."""
        names = [name for name in self._names if name is not None]
        is_anchored = len(names) == len(self._names) and len(parts) < len(names)
        return is_anchored and all(name.match(part) for name, part in zip(names, parts, strict=False))

    def _skip_double_stars(self, reached: set[int]) -> set[int]:
        """Add the positions after `**`, which also matches no folder at all."""
        for at in sorted(reached):
            while at < len(self._names) and self._names[at] is None:
                at += 1
                reached = reached | {at}
        return reached


def _expand_choices(pattern: str) -> list[str]:
    """Return the patterns that a pattern stands for: `*.{yaml,yml}` is two."""
    remaining, expanded = [pattern], []
    while remaining:
        each = remaining.pop(0)
        choice = _CHOICE.search(each)
        if choice is None:
            expanded.append(each)
        else:
            remaining += [each[: choice.start()] + option + each[choice.end() :] for option in choice[1].split(",")]
        if len(remaining) + len(expanded) > _MAX_CHOICES:
            raise Retry(f"{pattern!r} stands for more than {_MAX_CHOICES} patterns: write a simpler one.")
    return expanded


# Rules


@dataclass(frozen=True, slots=True)
class PathRules:
    """Paths that match any of some patterns, with everything below them. Case is ignored, as by some file systems."""

    patterns: tuple[str, ...] = ()
    paths: tuple[Parts, ...] = ()
    """Paths of the workspace; the empty path is the workspace itself, so that everything is covered."""
    prefixes: tuple[Parts, ...] = ()
    """The same, but the last name may be longer: `calls.db` stands for `calls.db-wal` too."""

    def covers(self, parts: Parts) -> bool:
        """Return whether the path or a folder above it matches."""
        if () in self.paths or () in self.prefixes:
            return True
        return any(self.name_matcher(parts[:depth])(name) for depth, name in enumerate(parts))

    def name_matcher(self, folder: Parts) -> Callable[[str], bool]:
        """Return a function that tells whether a name in a folder is covered. The folder itself is not covered."""
        return _make_name_matcher(self, folder)

    def covers_below(self, parts: Parts) -> bool:
        """Return whether a path below this one is covered because of its place, and would not be after a move."""
        folded = _normalize_file_names(parts)
        if any(_normalize_file_names(path)[: len(folded)] == folded for path in (*self.paths, *self.prefixes)):
            return True
        return any(pattern.may_match_below(folded) for pattern in _compile_rules(self.patterns)[2])


@lru_cache(maxsize=1024)
def _make_name_matcher(rules: PathRules, folder: Parts) -> Callable[[str], bool]:
    above, (names, last_names, located) = _normalize_file_names(folder), _compile_rules(rules.patterns)
    paths = {path[-1] for path in map(_normalize_file_names, rules.paths) if path and path[:-1] == above}
    prefixes = tuple(path[-1] for path in map(_normalize_file_names, rules.prefixes) if path and path[:-1] == above)

    def is_covered(name: str) -> bool:
        folded = _normalize_file_name(name)
        return (
            names.match(folded) is not None
            or folded in paths
            or folded.startswith(prefixes)
            or (last_names.match(folded) is not None and any(each.matches((*above, folded)) for each in located))
        )

    return is_covered


@cache
def _compile_rules(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str], list[_GlobPattern]]:
    """Compile patterns of single names, which apply in any folder, and patterns with a place.

    Return an expression for the single names, one for the last names of the others, and the others.
    """
    choices = [each.rstrip("/") for pattern in patterns for each in _expand_choices(pattern)]
    expanded = ["/".join(_normalize_file_names(each.split("/"))) for each in choices if each]
    located = [each for each in expanded if "/" in each]
    single_names = [each for each in expanded if "/" not in each]
    last_names = [each.rpartition("/")[2] for each in located]
    names, last = (re.compile("|".join(map(translate, each)) or r"(?!)") for each in (single_names, last_names))
    return names, last, [_GlobPattern(each) for each in located]


def _normalize_file_names(parts: Iterable[str]) -> Parts:
    """Return names in a form in which names are equal that some file system takes for equal: case, dots at the end …"""
    return tuple(map(_normalize_file_name, parts))


def _normalize_file_name(name: str) -> str:
    if not name.isascii():
        visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", visible).casefold())
    return name.lower().rstrip(". ") or name
