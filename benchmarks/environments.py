"""One virtual environment per peer, so that each has the versions it wants and pays for its own imports only."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestants import Contestant
from benchmarks.processes import Failure, run

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "bench-venvs"

_VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({d: m.version(d) for d in sys.argv[1:]}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An interpreter and what is installed for it."""

    python: str
    versions: dict[str, str]


def environment_for(contestant: Contestant) -> Environment:
    """The contestant's environment, made now if there is none; Failure when that cannot be done."""
    if not contestant.distributions:
        return _look_at(sys.executable, ("ferrule",) if contestant.module == "ferrule" else ("jsonschema-rs", "anyio"))
    python = str(ENVIRONMENTS / contestant.name / "bin" / "python")
    try:
        return _look_at(python, contestant.distributions)
    except (Failure, OSError):  # not there yet, or only half
        uv = [sys.executable, "-m", "uv"]
        run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENTS / contestant.name)])
        run([*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *contestant.distributions])
        return _look_at(python, contestant.distributions)


def _look_at(python: str, distributions: tuple[str, ...]) -> Environment:
    return Environment(python=python, versions=json.loads(run([python, "-c", _VERSIONS, *distributions])))
