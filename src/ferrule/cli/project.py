"""A new project: a configuration and an example of each kind of tool."""

from __future__ import annotations

from pathlib import Path

from ferrule.errors import SetupError

FILES = {
    "ferrule.toml": """\
# How this project's tools are run. Everything here is optional.

[engine]
tools_directory = "tools"
watch_for_changes = true      # a saved file is there within a fraction of a second
# strict_validation = true    # coerce nothing, refuse unknown parameters
# default_timeout = 30        # seconds

[limits]
max_concurrent = 10
queue_size = 100
# bucket_limits = { http = 5, ai = 2 }
# rate_limits = { http = 60 }   # calls per minute

[store]
url = "sqlite:///.ferrule/calls.db"
# max_age_days = 30

# What the tools in the box may use; `ferrule tools list` says what the others need.
[tools]
workspace = "."               # the folder whose files models may read and change

[http]
# allow_private_addresses = true
# allowed_hosts = ["intranet.example"]

# Web APIs as tools; see: ferrule openapi show FILE_OR_URL
# [[openapi]]
# source = "petstore.yaml"
# exclude = ["deletePet"]
""",
    "tools/arithmetic.py": '''\
"""Functions become tools: the schema comes from the type hints, the words from the docstring."""

from ferrule import tool


@tool(tags=["math"], read_only=True)
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b
''',
    "tools/today.yaml": """\
# A command as a tool. Arguments are passed as they are, never through a shell.
name: today
version: "1.0.0"
description: Tell today's date in a format of your choice
category: custom
tags: [time, date]

parameters:
  - name: format
    type: string
    default: "%Y-%m-%d"
    description: A format as the date command takes it
    validation:
      pattern: "^%"

entry:
  type: external
  command: [date, "+{format}"]

effects:
  read_only: true
limits:
  timeout: 5
""",
    "tools/fetch_json.yaml": """\
# An executor that comes with Ferrule, under a name and with parameters of your own.
name: fetch_json
version: "1.0.0"
description: Fetch a JSON document
category: http
tags: [network, api]

parameters:
  - name: url
    type: string
    required: true
    description: Where it is
    validation:
      pattern: "^https://"

entry:
  type: builtin
  handler: http_request

effects:
  read_only: true
""",
    ".gitignore": ".ferrule/\n",
}


def make_project(directory: Path, *, force: bool = False) -> list[Path]:
    """Write the files; refuses to replace any unless told to."""
    there = [directory / name for name in FILES if (directory / name).exists() and name != ".gitignore"]
    if there and not force:
        names = ", ".join(str(path) for path in there)
        raise SetupError(f"Already there: {names}. Use --force to replace.")
    made = []
    for name, text in FILES.items():
        path = directory / name
        if name == ".gitignore" and path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        made.append(path)
    return made
