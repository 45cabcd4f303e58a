"""What the modules of `src` import and name, read once for all tests that look at the source."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import ferrule

SOURCE = Path(ferrule.__file__).parents[1]


@dataclass(slots=True)
class SourceModule:
    path: Path
    imports: list[str] = field(default_factory=list)
    """`package.module`; for `from ferrule import name` also the name."""
    relative_imports: list[int] = field(default_factory=list)
    """Their lines."""
    classes: list[str] = field(default_factory=list)
    names: set[tuple[int, str]] = field(default_factory=set)
    """Every name that the module defines or uses, except attributes, with its line."""
    attributes: set[tuple[int, str]] = field(default_factory=set)
    definitions: set[str] = field(default_factory=set)
    """Classes, functions, parameters, variables, fields, and texts that could be the name of a tool or an option."""


@cache
def read_modules() -> list[SourceModule]:
    return [_read_module(path) for path in sorted(SOURCE.rglob("*.py"))]


def _read_module(path: Path) -> SourceModule:
    module = SourceModule(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        _note(node, module)
    return module


def _note(node: ast.AST, module: SourceModule) -> None:
    match node:
        case ast.Name(id=name):
            module.names.add((node.lineno, name))
            if isinstance(node.ctx, ast.Store):
                module.definitions.add(name)
        case ast.Attribute(attr=name):
            module.attributes.add((node.lineno, name))
            if isinstance(node.ctx, ast.Store):
                module.definitions.add(name)
        case ast.Constant(value=str(text)):
            if text.isidentifier():
                module.definitions.add(text)
        case ast.arg(arg=name):
            module.names.add((node.lineno, name))
            module.definitions.add(name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            module.names.add((node.lineno, name))
            module.definitions.add(name)
            if isinstance(node, ast.ClassDef):
                module.classes.append(name)
        case ast.Import(names=names):
            module.imports += [alias.name for alias in names]
        case ast.ImportFrom(module=package, names=names):
            if node.level:
                module.relative_imports.append(node.lineno)
            module.imports += [f"{package}.{each.name}" if package == "ferrule" else str(package) for each in names]
