"""Records a terminal with real `ferrule` commands as an animated SVG: docs/images/terminal.svg.

Each command runs in a pseudo-terminal, in a project that is made for the recording, and gets the answers that a person
would type. What the program prints is drawn as it is; only the times between the lines are set here.
"""

import os
import pty
import re
import select
import signal
import sys
import tempfile
import time
from html import escape
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs/images/terminal.svg"
FERRULE = Path(sys.executable).with_name("ferrule")
TOOLS = '''
from ferrule import tool

@tool(destructive=True)
def refund_order(order: str) -> str:
    """Refund an order.

    Args:
        order: the number of the order, such as A-1001
    """
    return f"Refunded 58.50 euros for order {order}."
'''
COMMANDS: list[tuple[str, str]] = [
    ('ferrule ask "what is 15% of 80, and what time is it in Tokyo?"', ""),
    ('ferrule ask "refund order A-1002"', "y\n"),
    ("ferrule call calculator expression=2**64", ""),
    ("ferrule calls", ""),
]
COLUMNS, LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 92, 20, 8.43, 18
SECONDS_PER_CHARACTER, SECONDS_PER_LINE, PAUSE = 0.025, 0.12, 0.9
COLORS = {"background": "#16181d", "text": "#e6e6e6", "prompt": "#7fd1b9", "dim": "#8b93a1"}
MAX_SECONDS = 60.0
CONSOLE = Console(width=COLUMNS)
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def record(command: str, answer: str, folder: Path) -> str:
    """What a command prints to a terminal; `answer` is typed when it stops printing and waits."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
    }
    environment["PATH"] = f"{FERRULE.parent}{os.pathsep}{environment.get('PATH', '')}"
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "FERRULE_MODEL"):
        environment.pop(name, None)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve("/bin/sh", ["sh", "-c", command], environment)
    output, deadline = b"", time.monotonic() + MAX_SECONDS
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.2)[0]:
            if answer and CONTROL.sub("", output.decode()).rstrip().endswith(":"):
                os.write(terminal, answer.encode())
                answer = ""
            continue
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # the program has ended
            break
        if not chunk:
            break
        output += chunk
    else:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if status:
        sys.exit(f"{command} failed:\n{output.decode()}")
    return output.decode()


def lines_of(output: str) -> list[Text]:
    """The lines as they are in the end: what was overwritten is not drawn."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-HJKSThl]", "", output.replace("\r\n", "\n"))
    kept = [line.rpartition("\r")[2].rstrip() for line in text.strip("\n").split("\n")]
    return [Text.from_ansi(line) for line in kept]


def draw(recordings: list[tuple[str, list[Text]]]) -> str:
    """The SVG. Each line appears at its time; the picture then stays as it is."""
    rows, at = [], 0.5
    for command, lines in recordings:
        rows.append((f'<tspan fill="{COLORS["prompt"]}">$</tspan> {escape(command)}', at))
        at += PAUSE + len(command) * SECONDS_PER_CHARACTER
        for line in lines:
            rows.append((spans(line), at))
            at += SECONDS_PER_LINE
        at += PAUSE
    width = int(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN)
    height = len(rows) * LINE_HEIGHT + 2 * MARGIN
    texts = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + 14 + number * LINE_HEIGHT}" style="animation-delay:{start:.2f}s">{row}</text>'
        for number, (row, start) in enumerate(rows)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>Commands of Ferrule in a terminal</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: {COLORS["text"]};
  white-space: pre; opacity: 0; animation: appear 0.01s linear forwards; }}
@keyframes appear {{ to {{ opacity: 1; }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ opacity: 1; animation: none; }} }}
</style>
<rect width="100%" height="100%" rx="10" fill="{COLORS["background"]}"/>
{texts}
</svg>
"""


def spans(line: Text) -> str:
    """A line with its colors as parts of an SVG text."""
    edges = sorted({0, len(line), *(edge for span in line.spans for edge in (span.start, span.end))})
    return "".join(
        _span(line.plain[start:end], line.get_style_at_offset(CONSOLE, start))
        for start, end in zip(edges, edges[1:], strict=False)
    )


def _span(text: str, style: Style) -> str:
    color = COLORS["dim"] if style.dim else style.color.get_truecolor().hex if style.color else ""
    weight = ' font-weight="bold"' if style.bold else ""
    fill = f' fill="{color}"' if color else ""
    return f"<tspan{fill}{weight}>{escape(text)}</tspan>" if fill or weight else escape(text)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record("ferrule init .", "", folder)
        (folder / "tools/orders.py").write_text(TOOLS, encoding="utf-8")
        recordings = [(command, lines_of(record(command, answer, folder))) for command, answer in COMMANDS]
    PICTURE.write_text(draw(recordings), encoding="utf-8")
    print("\n".join(f"$ {command}\n" + "\n".join(line.plain for line in lines) for command, lines in recordings))


if __name__ == "__main__":
    main()
