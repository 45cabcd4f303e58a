"""Calls as models make them, and a folder to work on."""

from typing import Any

from ferrule import tool


def call(name: str, /, **arguments: object) -> Any:
    return {"name": name, "arguments": arguments}


class Folder:
    """Files in memory, and tools that list, read and write them."""

    def __init__(self, **files: str) -> None:
        self.files = {f"{name}.txt": text for name, text in files.items()}

    def tools(self) -> list[Any]:
        @tool(read_only=True)
        async def list_files() -> list[str]:
            """List the files in the working folder."""
            return list(self.files)

        @tool(read_only=True)
        async def read_file(path: str) -> str:
            """Read a text file."""
            return self.files[path]

        @tool
        async def write_file(path: str, content: str) -> str:
            """Write a text into a file."""
            self.files[path] = content
            return f"wrote {len(content)} characters to {path}"

        return [list_files, read_file, write_file]
