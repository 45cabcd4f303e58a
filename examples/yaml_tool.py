"""A command as a tool, described in YAML: no Python, no shell, arguments checked by a pattern."""

import asyncio
import tempfile
from pathlib import Path

from ferrule import ToolEngineConfig, UnifiedToolLibrary

TOOL = """
name: count_lines
description: Count the lines of a file
parameters:
  - name: path
    type: string
    required: true
    validation: {pattern: "^[a-z]+[.]txt$"}
entry:
  type: external
  command: [wc, -l, "{path}"]
  cwd: FOLDER
effects: {read_only: true}
limits: {timeout: 5}
"""


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "notes.txt").write_text("one\ntwo\nthree\n")
        Path(folder, "count_lines.yaml").write_text(TOOL.replace("FOLDER", folder))
        async with UnifiedToolLibrary(config=ToolEngineConfig(tools_directory=folder)) as library:
            print((await library.execute("count_lines", {"path": "notes.txt"})).text.strip())
            print((await library.execute("count_lines", {"path": "../secret"})).error)


if __name__ == "__main__":
    asyncio.run(main())
