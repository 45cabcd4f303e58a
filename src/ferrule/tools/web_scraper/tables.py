"""Tables of a page as rows of text, with cells that span several repeated in each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lxml.html import HtmlElement  # type: ignore[import-untyped]

MOST_TABLES: Final = 30
MOST_ROWS: Final = 300
MOST_COLUMNS: Final = 100
MOST_CELLS: Final = 5_000
"""Of all tables of a page together."""
LONGEST_CELL: Final = 500


def tables_of(page: HtmlElement) -> tuple[list[dict[str, Any]], int]:
    """The tables that hold data, and how many more there are."""
    found: list[dict[str, Any]] = []
    left_out, cells = 0, MOST_CELLS
    for element in page.iter("table"):
        if next(element.iterdescendants("table"), None) is not None:
            continue  # it only puts other things in their places
        if len(found) == MOST_TABLES or cells <= 0:
            left_out += 1
            continue
        table = _table(element, cells)
        if table is not None:
            found.append(table)
            cells -= sum(map(len, table["rows"]))
    return found, left_out


def _table(element: HtmlElement, cells: int) -> dict[str, Any] | None:
    rows, heads, is_whole = _grid(element, cells)
    rows = [row for row in rows if any(row)]
    if not rows or max(map(len, rows)) < 2:
        return None
    width = max(map(len, rows))
    rows = [row + [""] * (width - len(row)) for row in rows]
    caption = element.find("caption")
    table: dict[str, Any] = {
        "caption": None if caption is None else _text(caption) or None,
        "header": rows[0] if heads else None,
        "rows": rows[1:] if heads else rows,
    }
    return table if is_whole else {**table, "cut": True}


def _grid(element: HtmlElement, cells: int) -> tuple[list[list[str]], bool, bool]:
    """The rows, whether the first is a header, and whether these are all."""
    rows: list[list[str]] = []
    reaching: dict[int, tuple[int, str]] = {}
    """By column: for how many more rows a cell from above reaches down, and what it says."""
    heads = False
    for tr in _rows(element):
        if len(rows) == MOST_ROWS or cells <= 0:
            return rows, heads, False
        row: list[str] = []
        own = [cell for cell in tr if cell.tag in ("td", "th")]
        if not rows:
            heads = bool(own) and (all(cell.tag == "th" for cell in own) or tr.getparent().tag == "thead")
        for cell in own:
            _take_from_above(row, reaching)
            text, across, down = _text(cell), _span(cell, "colspan", MOST_COLUMNS), _span(cell, "rowspan", MOST_ROWS)
            for _ in range(min(across, MOST_COLUMNS - len(row))):
                if down > 1:
                    reaching[len(row)] = down - 1, text
                row.append(text)
        _take_from_above(row, reaching)
        rows.append(row)
        cells -= max(len(row), 1)
    return rows, heads, True


def _rows(element: HtmlElement) -> Iterator[HtmlElement]:
    # The foot may stand before the body.
    groups = sorted(element, key=lambda group: group.tag == "tfoot")
    for group in groups:
        if group.tag == "tr":
            yield group
        elif group.tag in ("thead", "tbody", "tfoot"):
            yield from group.iterchildren("tr")


def _take_from_above(row: list[str], reaching: dict[int, tuple[int, str]]) -> None:
    while (above := reaching.pop(len(row), None)) is not None and len(row) < MOST_COLUMNS:
        down, text = above
        if down > 1:
            reaching[len(row)] = down - 1, text
        row.append(text)


def _span(cell: HtmlElement, name: str, most: int) -> int:
    said = (cell.get(name) or "").strip()
    if not said.isascii() or not said.isdecimal():
        return 1
    number = int(said[:9])
    # As HTML has it: a rowspan of 0 reaches to the end.
    return most if number == 0 and name == "rowspan" else min(max(number, 1), most)


def _text(element: HtmlElement) -> str:
    text = " ".join(" ".join(element.itertext()).split())
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
