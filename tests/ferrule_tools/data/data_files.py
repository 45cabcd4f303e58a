"""Files with tables in them."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from ferrule_tools.data import DataAnalyzerConfig
from ferrule_tools.data.analyzer import DataAnalyzer
from ferrule_tools.files.workspace import Workspace

SALES = "day,region,amount\n2024-01-05,North,10.5\n2024-01-06,South,20\n2024-02-01,North,30\n2024-02-03,,7\n"


def analyzer_in(folder: Path, **limits) -> DataAnalyzer:
    return DataAnalyzer(Workspace.at(folder), DataAnalyzerConfig(**limits))


def parquet(path: Path, sql: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")


def workbook(**sheets: Sequence[Sequence[object]]) -> bytes:
    """An Excel file with these sheets."""
    return packed_workbook({name: "".join(map(_row, rows)) for name, rows in sheets.items()})


def packed_workbook(sheets: dict[str, str]) -> bytes:
    """The same from what stands in `sheetData`."""
    saved = io.BytesIO()
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        listed = "".join(f'<sheet name="{n}" sheetId="{i}" r:id="r{i}"/>' for i, n in enumerate(sheets, 1))
        related = "".join(
            f'<Relationship Id="r{i}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{i}.xml"/>'
            for i in range(1, len(sheets) + 1)
        )
        parts = {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{related}</Relationships>',
            "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"/>',
        }
        for index, data in enumerate(sheets.values(), 1):
            parts[f"xl/worksheets/sheet{index}.xml"] = (
                f'<worksheet xmlns="{_MAIN}"><sheetData>{data}</sheetData></worksheet>'
            )
        for name, content in parts.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{content}')
    return saved.getvalue()


def _row(cells: Sequence[object]) -> str:
    return f"<row>{''.join(map(_cell, cells))}</row>"


def _cell(value: object) -> str:
    if value is None:
        return "<c/>"
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f"<c><v>{value}</v></c>"


_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
