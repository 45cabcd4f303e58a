"""Recorded data beside a checkout, which is not part of it: tests that need it are skipped where it is absent."""

from pathlib import Path


def shared_data(name: str) -> Path:
    """A file or folder of the nearest `shared/data` above; a path that does not exist where there is none."""
    folders = [parent / "shared" / "data" for parent in Path(__file__).parents]
    return next((folder / name for folder in folders if folder.is_dir()), folders[0] / name)
