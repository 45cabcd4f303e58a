"""Layers are an ordered list, and so are the packages of a layer: a module imports only what stands before it."""

import ast
from functools import cache
from pathlib import Path

import ferrule

LAYERS = {
    "values": ["errors", "core", "texts"],
    "catalogue": ["catalog"],
    "infrastructure": ["store", "concurrency", "process", "http"],
    "kinds of tools": ["kinds"],
    "runtime": ["policy", "engine", "memory", "hub", "config", "folder_trust", "library"],
    "agents": ["models", "parsing", "agent", "workflow", "orchestrator"],
    "interfaces": [
        "testing",
        "documents",
        "adapters",
        "telemetry",
        "server",
        "web",
        "cluster",
        "batch",
        "evaluation",
        "simulation",
        "cli",
    ],
}
MAX_LINES = {
    "errors": 350,
    "core": 5_050,
    "texts": 1_750,
    "catalog": 3_150,
    "store": 5_600,
    "concurrency": 1_450,
    "process": 2_750,
    "http": 850,
    "kinds": 12_450,
    "policy": 1_250,
    "engine": 2_800,
    "memory": 2_300,
    "hub": 1_450,
    "config": 500,
    "folder_trust": 300,
    "library": 950,
    "models": 3_850,
    "parsing": 2_450,
    "agent": 4_450,
    "workflow": 3_050,
    "orchestrator": 1_350,
    "testing": 350,
    "documents": 550,
    "adapters": 600,
    "telemetry": 550,
    "server": 9_600,
    "web": 100,
    "cluster": 1_050,
    "batch": 2_000,
    "evaluation": 600,
    "simulation": 250,
    "cli": 6_600,
    "ferrule_tools": 11_600,
}
"""A change removes as many lines as it adds, from its own package or from another one, whose limit is lowered then."""
PACKAGES = [package for layer in LAYERS.values() for package in layer]
LAYER_OF = {package: number for number, layer in enumerate(LAYERS.values(), 1) for package in layer}
SOURCE = Path(ferrule.__file__).parent


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> set[str]:
    """The packages a module imports, wherever in the file the import is; `ferrule_tools` for the bundled tools."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: write the import in full"
            names += [f"{node.module}.{a.name}" if node.module == "ferrule" else str(node.module) for a in node.names]
    parts = [name.split(".") for name in names]
    return {p[1] for p in parts if p[0] == "ferrule" and len(p) > 1} | {p[0] for p in parts if p[0] == "ferrule_tools"}


MODULES = [(path, package_of(path)) for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py"]
MODULES = [(path, package) for path, package in MODULES if package != "__init__"]


def test_every_module_belongs_to_a_package_of_a_layer():
    assert {package for _, package in MODULES} <= set(PACKAGES)


def test_a_layer_imports_only_lower_layers():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path, package in MODULES
        for other in imports_of(path) & set(PACKAGES)
        if LAYER_OF[other] > LAYER_OF[package]
    ]
    assert wrong == []


def test_a_package_imports_only_packages_before_it_in_its_layer():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path, package in MODULES
        for other in imports_of(path) & set(PACKAGES)
        if LAYER_OF[other] == LAYER_OF[package] and PACKAGES.index(other) > PACKAGES.index(package)
    ]
    assert wrong == []


def test_the_package_does_not_import_the_bundled_tools():
    wrong = [
        f"{path.relative_to(SOURCE)} imports ferrule_tools"
        for path, _ in MODULES
        if "ferrule_tools" in imports_of(path)
    ]
    assert wrong == []


def test_no_package_grows_beyond_its_lines():
    folders = [(SOURCE / package, package) for package in PACKAGES]
    folders.append((SOURCE.parent / "ferrule_tools", "ferrule_tools"))
    too_long = {package: lines for folder, package in folders if (lines := count_lines(folder)) > MAX_LINES[package]}
    assert too_long == {}


def count_lines(package: Path) -> int:
    paths = package.rglob("*.py") if package.is_dir() else [package.with_suffix(".py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
