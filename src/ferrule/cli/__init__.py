"""`ferrule`: tools from a terminal."""

import gc
import sys

from ferrule import __version__

_GC_THRESHOLD, _START_THRESHOLD = gc.get_threshold(), 200_000


def main() -> None:
    """Run the command `ferrule`. The version is printed without loading the commands: scripts ask for it often."""
    if sys.argv[1:] == ["--version"]:
        _print_version()
        return
    # Nothing of what a start makes is garbage, and to look for some takes a seventh of it.
    gc.set_threshold(_START_THRESHOLD)
    from ferrule.cli.app import main as run_command

    run_command()


def collect_garbage_as_usual() -> None:
    """End what `main` began: collect garbage as before, but never look at what was imported."""
    if gc.get_threshold()[0] == _START_THRESHOLD:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)


def _print_version() -> None:
    try:
        print(f"ferrule {__version__}", flush=True)
    except OSError as error:  # standard output was closed, or its disk is full
        from ferrule.cli.terminal import exit_without_output

        exit_without_output(error)
