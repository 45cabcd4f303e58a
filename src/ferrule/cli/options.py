"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MaxCount = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")]
RunId = Annotated[str, typer.Argument(help="The id of the run.")]
ToolName = Annotated[str, typer.Argument(help="The tool, or tool__action where it has several.")]
ArgumentPairs = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments; KEY:=JSON for values that are not text.")
]
ArgumentsAsJson = Annotated[
    str | None, typer.Option("--params", "-p", help="All arguments as a JSON object; @FILE, or - for stdin.")
]
ActionName = Annotated[str | None, typer.Option("--action", "-a", help="Which action of the tool.")]
CallTimeout = Annotated[float | None, typer.Option("--timeout", "-t", min=0.001, help="Maximum seconds.")]
ApprovalOfCall = Annotated[
    str | None, typer.Option("--approval", help="The id of the approval that this call needed before.")
]
