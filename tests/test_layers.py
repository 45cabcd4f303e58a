"""Layers are an ordered list, and so are the packages of a layer: a module imports only what stands before it."""

from pathlib import Path

from tests.support.source_code import SOURCE as ROOT
from tests.support.source_code import SourceModule, read_modules

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
    "errors": 400,
    "core": 5_050,
    "texts": 1_700,
    "catalog": 3_300,
    "store": 5_050,
    "concurrency": 1_400,
    "process": 2_600,
    "http": 850,
    "kinds": 11_900,
    "policy": 2_100,
    "engine": 2_850,
    "memory": 2_250,
    "hub": 1_350,
    "config": 550,
    "folder_trust": 300,
    "library": 950,
    "models": 3_650,
    "parsing": 2_300,
    "agent": 4_550,
    "workflow": 2_750,
    "orchestrator": 1_290,
    "testing": 400,
    "documents": 600,
    "adapters": 600,
    "telemetry": 550,
    "server": 9_150,
    "web": 100,
    "cluster": 1_050,
    "batch": 1_950,
    "evaluation": 600,
    "simulation": 300,
    "cli": 6_200,
    "ferrule_tools": 11_300,
}
"""A change removes as many lines as it adds, from its own package or from another one, whose limit is lowered then."""
PACKAGES = [package for layer in LAYERS.values() for package in layer]
LAYER_OF = {package: number for number, layer in enumerate(LAYERS.values(), 1) for package in layer}
SOURCE = ROOT / "ferrule"


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(module: SourceModule) -> set[str]:
    """The packages a module imports, wherever in the file the import is; `ferrule_tools` for the bundled tools."""
    assert module.relative_imports == [], f"{module.path}: write these imports in full"
    parts = [name.split(".") for name in module.imports]
    return {p[1] for p in parts if p[0] == "ferrule" and len(p) > 1} | {p[0] for p in parts if p[0] == "ferrule_tools"}


def modules_of_packages() -> list[tuple[SourceModule, str]]:
    modules = [module for module in read_modules() if module.path.is_relative_to(SOURCE)]
    packages = [(module, package_of(module.path)) for module in modules if module.path.name != "__main__.py"]
    return [(module, package) for module, package in packages if package != "__init__"]


def test_every_module_belongs_to_a_package_of_a_layer():
    assert {package for _, package in modules_of_packages()} <= set(PACKAGES)


def test_a_layer_imports_only_lower_layers():
    wrong = [
        f"{module.path.relative_to(SOURCE)} imports {other}"
        for module, package in modules_of_packages()
        for other in imports_of(module) & set(PACKAGES)
        if LAYER_OF[other] > LAYER_OF[package]
    ]
    assert wrong == []


def test_a_package_imports_only_packages_before_it_in_its_layer():
    wrong = [
        f"{module.path.relative_to(SOURCE)} imports {other}"
        for module, package in modules_of_packages()
        for other in imports_of(module) & set(PACKAGES)
        if LAYER_OF[other] == LAYER_OF[package] and PACKAGES.index(other) > PACKAGES.index(package)
    ]
    assert wrong == []


def test_the_package_does_not_import_the_bundled_tools():
    wrong = [
        f"{module.path.relative_to(SOURCE)} imports ferrule_tools"
        for module, _ in modules_of_packages()
        if "ferrule_tools" in imports_of(module)
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
