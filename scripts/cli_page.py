"""Generates docs/cli.md from the commands; `--check` only reports whether the page is up to date."""

import html
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/cli.md"


def page() -> str:
    command = [sys.executable, "-m", "typer", "ferrule.cli.app", "utils", "docs", "--name", "ferrule"]
    process = subprocess.run([*command, "--title", "The command line"], capture_output=True, text=True, check=True)
    return "\n".join(html.unescape(line.rstrip()) for line in process.stdout.strip().splitlines()) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else "docs/cli.md is out of date: run make docs")
    PAGE.write_text(page(), encoding="utf-8")
