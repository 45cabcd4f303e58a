"""Python files of users, loaded as modules of their own, in this process and in workers.

A file is not imported by its name: it could hide a module of the same name, and an edited file would be mistaken for
the old one. Instead each version of it becomes a module `ferrule_user_tools.<stem>_<digest>`. The digest covers the
file and the files beside it that it imports, so that a changed helper makes a new version too, and code that runs
keeps the version it started with. The module is in `sys.modules`, as pickle, dataclasses and pydantic need it.

A file may import its siblings: `import helper`, `from helper import x` and `from .helper import x` all find
`helper.py` in the same folder, unless a module of that name can be imported in the normal way. `sys.path` is not
changed. A `ModuleVersion` contains the sources: what another process needs to load exactly the same code, even if the
file has changed since.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ferrule.errors import LoadError

PACKAGE = "ferrule_user_tools"
MAX_VERSIONS = 8
"""How many versions of one file stay in `sys.modules`; running code keeps older ones alive without it."""

_loading_lock = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleVersion:
    """A Python file and the siblings it imports, as they were when they were read."""

    path: Path
    """Absolute."""
    sources: Mapping[Path, bytes]
    digest: str
    """Of the sources alone: the same code has the same digest in any folder."""
    name: str
    """Of the module."""

    @classmethod
    def of(cls, path: Path, read: Callable[[Path], bytes | None]) -> ModuleVersion:
        """Read the file and all siblings that it imports, and those that these import."""
        sources: dict[Path, bytes] = {}
        pending = [path]
        while pending:
            current = pending.pop()
            source = None if current in sources else read(current)
            if source is not None:
                sources[current] = source
                pending += [current.with_name(f"{name}.py") for name in _find_imported_names(source)]
        content = sha256()
        for file in sorted(sources):
            content.update(f"{file.name} {len(sources[file])} ".encode() + sources[file])
        identity = sha256(content.digest() + str(path).encode("utf-8", "surrogateescape"))
        name = f"{PACKAGE}.{path.stem.replace('.', '_')}_{identity.hexdigest()[:12]}"
        return cls(path=path, sources=sources, digest=content.hexdigest()[:16], name=name)


def read_version(path: Path) -> ModuleVersion:
    """Return the file as it is now; LoadError when it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(f"the file cannot be read: {error.strerror or error}", path=path) from None
    absolute = Path(os.path.abspath(path))

    def read(source: Path) -> bytes | None:
        if source == absolute:
            return content
        try:
            return source.read_bytes() if find_sibling_module(source, source.stem) else None
        except OSError:
            return None  # deleted meanwhile, or not readable: then it does not count

    return ModuleVersion.of(absolute, read)


def load_version(version: ModuleVersion) -> ModuleType:
    """Return the module of this version, run now unless it was loaded before; raises what its code raises."""
    with _loading_lock:
        loaded = sys.modules.get(version.name)
        if loaded is not None:
            return loaded
        module = _create_module(version)
        sys.modules[version.name] = module
        try:
            # Without dont_inherit the __future__ imports of this file would apply to the user's.
            exec(compile(version.sources[version.path], version.path, "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[version.name]
            raise
        file = str(version.path)
        own_package = [(name, each) for name, each in list(sys.modules.items()) if name.startswith(f"{PACKAGE}.")]
        versions = [name for name, each in own_package if getattr(each, "__file__", None) == file]
        for name in versions[:-MAX_VERSIONS]:
            del sys.modules[name]
        return module


def load_python_module(path: Path) -> ModuleType:
    """Return the module of a file as it is now; LoadError, with the line of the user's code, when it does not load."""
    return load_or_explain(read_version(path), display_path=path)


def load_or_explain(version: ModuleVersion, *, display_path: Path) -> ModuleType:
    """Return the module of a version that was read before; error messages show `display_path`."""
    try:
        return load_version(version)
    except (Exception, SystemExit) as error:
        raise _make_load_error(error, version, display_path) from error


def find_sibling_module(path: Path, module: str) -> Path | None:
    """Return the file beside this one that `import module` loads in it; None for a module that is imported normally."""
    sibling = Path(os.path.abspath(path)).with_name(f"{module}.py")
    if not sibling.is_file():
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return sibling
    # A folder of that name without code has no origin, and does not hide the file.
    is_elsewhere = spec is not None and spec.origin is not None and Path(os.path.abspath(spec.origin)) != sibling
    return None if is_elsewhere else sibling


def find_module_version(function: Callable[..., Any]) -> ModuleVersion | None:
    """Return the version of the file a function (or class) was loaded from; None when it comes from a normal module."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    version = getattr(module, "__ferrule_version__", None)
    return version if isinstance(version, ModuleVersion) else None


def _create_module(version: ModuleVersion) -> ModuleType:
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE, "The Python files of tools that are loaded in this process.")
        package.__path__ = []
        sys.modules[PACKAGE] = package
    module = ModuleType(version.name)
    module.__file__ = str(version.path)
    module.__package__ = PACKAGE
    module.__dict__["__ferrule_version__"] = version
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _make_importer(version)}
    return module


def _make_importer(version: ModuleVersion) -> Callable[..., Any]:
    siblings = {path.stem: path for path in version.sources if path != version.path}

    def load(name: str) -> ModuleType:
        return load_version(ModuleVersion.of(siblings[name], version.sources.get))

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level <= 1 and name in siblings:
            return load(name)
        if level == 1 and not name:  # from . import helper
            return SimpleNamespace(**{item: load(item) for item in fromlist or () if item in siblings})
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    return import_


def _find_imported_names(source: bytes) -> set[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()  # running the file reports what is wrong
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= 1:
            names.update([node.module] if node.module else [alias.name for alias in node.names])
    return {name for name in names if "." not in name}


def _make_load_error(error: BaseException, version: ModuleVersion, display_path: Path) -> LoadError:
    file, line = str(version.path), 1
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename) in version.sources:
            file, line = frame.filename, frame.lineno or 1
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) in version.sources:
        file, line, text = error.filename, error.lineno or 1, error.msg
    hint = None
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install the package that has it, or put {error.name}.py next to this file"
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return LoadError(message, path=display_path.with_name(Path(file).name), line=line, hint=hint)
