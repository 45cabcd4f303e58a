"""The kinds of files that tables stand in."""

import io
import json
import os
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest

from ferrule import ToolEngine
from ferrule.errors import ExecutionFailed, Refuse, Retry, Transient
from ferrule_tools.data import data_analyzer_tools
from ferrule_tools.data.files import DataFile, TypeDetection
from ferrule_tools.data.limits import DataAnalyzerConfig, scratch_folder
from ferrule_tools.data.query import open_database
from ferrule_tools.files.workspace import Workspace
from tests.ferrule_tools.data.data_files import analyzer_in, packed_workbook, parquet, workbook

CHINESE = "编号,名称\n1,苹果\n2,梨子\n"


def rows_of(folder, file):
    return analyzer_in(folder).query("SELECT * FROM t", tables={"t": file})["rows"]


def names_in(folder, file):
    return [each["name"] for each in analyzer_in(folder).describe(file)["columns"]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_the_encoding_of_a_csv_file_is_found_out(tmp_path, encoding):
    (tmp_path / "fruit.csv").write_bytes(CHINESE.encode(encoding))
    output = analyzer_in(tmp_path).describe("fruit.csv")
    assert [each["name"] for each in output["columns"]] == ["编号", "名称"] and output["encoding"] == encoding
    assert output["columns"][1]["examples"] == ["苹果", "梨子"]


def test_an_encoding_that_cannot_be_found_out_can_be_said(tmp_path):
    (tmp_path / "a.csv").write_bytes("名,數\n蘋果,1\n".encode("big5"))
    assert rows_of(tmp_path, {"path": "a.csv", "encoding": "big5"}) == [["蘋果", 1]]
    with pytest.raises(Retry, match="'klingon' is not known"):
        rows_of(tmp_path, {"path": "a.csv", "encoding": "klingon"})


def test_a_delimiter_and_a_missing_header_can_be_said(tmp_path):
    (tmp_path / "a.txt").write_text("x~y\n1~2\n")
    assert rows_of(tmp_path, {"path": "a.txt", "delimiter": "~", "header": False}) == [["x", "y"], ["1", "2"]]
    for wrong in ("\n", "abcdef", "'); DROP"):
        with pytest.raises(Retry, match="cannot be a delimiter"):
            rows_of(tmp_path, {"path": "a.txt", "delimiter": wrong})


def test_tabs_separate_the_columns_of_a_tsv_file(tmp_path):
    (tmp_path / "a.tsv").write_text("a,b\tc\n1,5\tx\n")
    assert rows_of(tmp_path, "a.tsv") == [["1,5", "x"]]


def test_json_is_read_as_a_list_as_lines_and_nested(tmp_path):
    rows = [{"a": 1, "b": {"c": [1, 2]}}, {"a": 2, "b": None}]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rows_of(tmp_path, "list.json") == rows_of(tmp_path, "lines.jsonl") == [[1, {"c": [1, 2]}], [2, None]]


def test_parquet_is_read_with_its_types(tmp_path):
    parquet(tmp_path / "a.parquet", "SELECT DATE '2024-01-01' AS day, 1.25::DECIMAL(9,2) AS price, ['x'] AS tags")
    output = analyzer_in(tmp_path).describe("a.parquet")
    assert [each["type"] for each in output["columns"]] == ["DATE", "DECIMAL(9,2)", "VARCHAR[]"]
    assert rows_of(tmp_path, "a.parquet") == [["2024-01-01", 1.25, ["x"]]]


def test_the_sheets_of_a_workbook_are_tables(tmp_path):
    book = workbook(销售=[["名称", "数量"], ["苹果", 3], ["梨", 4.5]], Other=[["x"], [True]])
    (tmp_path / "book.xlsx").write_bytes(book)
    output = analyzer_in(tmp_path).describe("book.xlsx")
    assert (output["sheet"], output["sheets"], output["rows"]) == ("销售", ["销售", "Other"], 2)
    assert rows_of(tmp_path, "book.xlsx") == [["苹果", 3.0], ["梨", 4.5]]
    assert rows_of(tmp_path, {"path": "book.xlsx", "sheet": "Other"}) == [[True]]
    with pytest.raises(Retry, match=r"has no sheet 'Othr'. Did you mean 'Other'"):
        rows_of(tmp_path, {"path": "book.xlsx", "sheet": "Othr"})


def test_a_column_of_a_workbook_has_the_type_that_fits_all_its_cells(tmp_path):
    rows: list[list[object]] = [
        ["id", "mixed", "gap", "text"],
        [1, 2, None, 'say "hi", ok'],
        [2, "x", 5, "a\nb"],
        [3.0, True, 6, ""],
    ]
    (tmp_path / "a.xlsx").write_bytes(workbook(S=rows))
    output = analyzer_in(tmp_path).describe("a.xlsx")
    assert [each["type"] for each in output["columns"]] == ["BIGINT", "VARCHAR", "BIGINT", "VARCHAR"]
    assert rows_of(tmp_path, "a.xlsx") == [
        [1, "2", None, 'say "hi", ok'],
        [2, "x", 5, "a\nb"],
        [3, "True", 6, None],
    ]


def test_a_workbook_without_names_of_columns_gets_some(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(workbook(S=[[1, 2], [3, 4]]))
    (tmp_path / "b.xlsx").write_bytes(workbook(S=[["A", "a", None, "x'y"], [1, 2, 3, 4]]))
    (tmp_path / "c.xlsx").write_bytes(workbook(S=[]))
    assert names_in(tmp_path, "a.xlsx") == ["column1", "column2"]
    assert names_in(tmp_path, "b.xlsx") == ["A", "a_1", "column3", "x'y"]
    assert analyzer_in(tmp_path).describe("c.xlsx")["rows"] == 0
    assert rows_of(tmp_path, {"path": "a.xlsx", "header": True}) == [[3, 4]]


def test_years_over_the_columns_of_a_workbook_are_their_names(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(workbook(S=[["region", 2023, 2024], ["North", 1, 2000], ["South", 3, 4]]))
    (tmp_path / "born.xlsx").write_bytes(workbook(S=[["Ada", 1915], ["Bo", 2001]]))
    assert names_in(tmp_path, "a.xlsx") == ["region", "2023", "2024"]
    assert analyzer_in(tmp_path).query("SELECT sum(\"2023\") FROM 'a.xlsx'")["rows"] == [[4]]
    assert rows_of(tmp_path, "born.xlsx") == [["Ada", 1915], ["Bo", 2001]]


def test_types_of_a_csv_file_are_detected_again_from_the_whole_file(tmp_path):
    lines = "".join(f"{i},{i}\n" for i in range(30_000))
    (tmp_path / "late.csv").write_text(f"a,b\n{lines}unknown,1\n")
    output = analyzer_in(tmp_path).query("SELECT count(*), max(a), max(b) FROM 'late.csv'")
    assert output["rows"] == [[30_001, "unknown", 29_999]] and "note" not in output


def test_a_csv_file_without_a_common_format_is_read_as_text(tmp_path):
    lines = "".join(f"{i},{i}\n" for i in range(30_000))
    (tmp_path / "ragged.csv").write_text(f"a,b\n{lines}1,2,3,4\n5\n")
    output = analyzer_in(tmp_path).query("SELECT count(*), count(b) FROM 'ragged.csv'")
    assert output["rows"] == [[30_002, 30_001]] and "all columns are text" in output["note"]
    with pytest.raises(Retry, match="all columns are text"):
        analyzer_in(tmp_path).query("SELECT sum(a) FROM 'ragged.csv'")


def test_types_of_json_lines_are_detected_again_from_the_whole_file(tmp_path):
    lines = "".join(f'{{"a": {i}}}\n' for i in range(30_000))
    (tmp_path / "late.jsonl").write_text(lines + '{"a": "unknown"}\n{"a": {"deep": [1]}, "new": true}\n')
    output = analyzer_in(tmp_path).query("SELECT count(*), count(a) FROM 'late.jsonl'")
    assert output["rows"] == [[30_002, 30_002]]


def test_other_files_are_no_tables(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF-")
    with pytest.raises(Retry, match=r"'a.pdf' is not a data file: give one that ends in \.csv"):
        analyzer_in(tmp_path).describe("a.pdf")
    with pytest.raises(Refuse, match="is a URL"):
        analyzer_in(tmp_path).query("FROM 'https://example.com/a.csv'")


def test_a_broken_file_of_any_kind_is_told_by_its_name(tmp_path):
    text, parquet_only, zip_only = b'{"a":1},,{', b"PAR1" + bytes(range(256)) * 4 + b"PAR1", b"PK\x03\x04" + bytes(300)
    readable = set()
    for name in ("a.parquet", "a.xlsx", "a.xls", "a.json", "a.csv"):
        for content in (b"", text, parquet_only, zip_only):
            (tmp_path / name).write_bytes(content)
            try:
                analyzer_in(tmp_path).describe(name)
                readable.add((name, content))
            except (ExecutionFailed, Refuse) as error:
                assert repr(name) in str(error) and "/proc" not in str(error)
    assert readable <= {("a.csv", text), ("a.csv", b""), ("a.json", b"")}


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        ({"path": "a.csv", "shete": "x"}, "has no 'shete'. Did you mean 'sheet'"),
        ({"path": 5}, "must be a str"),
        ({"sheet": "x"}, "needs a path"),
        ({"path": "a.csv", "header": "yes"}, "must be a bool"),
        ({"path": "a.csv", "sheet": "x"}, "has no sheets"),
    ],
)
def test_what_is_said_of_a_file_must_make_sense(tmp_path, settings, output):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(Retry, match=output):
        rows_of(tmp_path, settings)


# Hostile files


def test_links_and_pipes_are_not_read(tmp_path):
    (tmp_path / "secret.csv").write_text("key\nhunter2\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link.csv").symlink_to(tmp_path / "secret.csv")
    (tmp_path / "inner" / "way").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "inner" / "pipe.csv")
    for path in ("link.csv", "way/secret.csv", "pipe.csv", "../secret.csv", str(tmp_path / "secret.csv")):
        with pytest.raises(Refuse):
            analyzer_in(tmp_path / "inner").describe(path)


def test_a_file_that_is_swapped_for_a_link_while_it_is_read_leads_nowhere(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("key\nhunter2\n")
    with open_database(Workspace.at(tmp_path), DataAnalyzerConfig(), TypeDetection.SAMPLE) as database:
        database.restrict_to_files({"a": DataFile(path="a.csv")})
        assert database.rows("FROM a") == [(1,)]
        (tmp_path / "link").symlink_to(tmp_path / "b.csv")
        os.replace(tmp_path / "link", tmp_path / "a.csv")
        with pytest.raises(Transient, match="'a.csv' was replaced while it was read"):
            database.rows("FROM a")


@pytest.mark.parametrize("character", ["x", ","])
def test_a_csv_file_of_one_enormous_line_is_refused_at_once(tmp_path, character):
    (tmp_path / "line.csv").write_text("a,b\n" + character * 3_000_000)
    with pytest.raises(Refuse, match="a line of more than 2,000,000 bytes"):
        analyzer_in(tmp_path).describe("line.csv")


def test_an_enormous_line_further_down_is_told_in_short(tmp_path):
    (tmp_path / "line.csv").write_text("a,b\n" + "1000000,2000000\n" * 300_000 + "x" * 3_000_000 + ",1\n")
    with pytest.raises((ExecutionFailed, Retry)) as failure:
        analyzer_in(tmp_path).query("SELECT count(*), max(a) FROM 'line.csv'")
    assert len(str(failure.value)) < 1_500


@pytest.mark.parametrize(("begin", "end", "depth"), [("[", "]", 200_000), ('{"a":', "}", 5_000), ('{"a"', "", 9_999)])
def test_json_that_is_nested_very_deep_is_refused(tmp_path, begin, end, depth):
    (tmp_path / "deep.json").write_text(begin * depth + "1" + end * depth)
    with pytest.raises(ExecutionFailed, match=r"'deep\.json' cannot be read"):
        analyzer_in(tmp_path).describe("deep.json")


def test_a_workbook_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ferrule_tools.data.files._MAX_UNPACKED", 3_000_000)  # a hundredth of what is allowed
    (tmp_path / "bomb.xlsx").write_bytes(packed_workbook({"S": "<row><c><v>" + "1" * 3_100_000 + "</v></c></row>"}))
    assert (tmp_path / "bomb.xlsx").stat().st_size < 10_000
    with pytest.raises(Refuse, match="when unpacked"):
        analyzer_in(tmp_path).describe("bomb.xlsx")


def test_a_workbook_with_a_wrong_size_header_is_refused(tmp_path):
    data = packed_workbook({"S": "<row><c><v>" + "1" * 5_000_000 + "</v></c></row>"})
    size = max(part.file_size for part in zipfile.ZipFile(io.BytesIO(data)).infolist())
    (tmp_path / "lie.xlsx").write_bytes(data.replace(struct.pack("<I", size), struct.pack("<I", 1_000)))
    with pytest.raises(ExecutionFailed, match=r"'lie\.xlsx' cannot be read as a workbook"):
        analyzer_in(tmp_path).describe("lie.xlsx")


@pytest.mark.parametrize("place", ["XFD1048576", "ZZ1048576"])
def test_a_cell_in_the_last_corner_of_a_sheet_is_refused(tmp_path, place):
    data = f'<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="{place}"><v>1</v></c></row>'
    (tmp_path / "far.xlsx").write_bytes(packed_workbook({"S": data}))
    with pytest.raises(Refuse, match="1,048,576 rows"):
        analyzer_in(tmp_path).describe("far.xlsx")


def test_a_workbook_cannot_bring_other_files_in(tmp_path):
    entity = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    data = packed_workbook({"S": '<row><c t="inlineStr"><is><t>&e;</t></is></c></row>'})
    saved = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(saved, "w") as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part).replace(b"<worksheet", entity.encode() + b"<worksheet"))
    (tmp_path / "entity.xlsx").write_bytes(saved.getvalue())
    try:
        output = str(analyzer_in(tmp_path).query("SELECT * FROM 'entity.xlsx'"))
    except (ExecutionFailed, Retry) as error:
        output = str(error)
    assert "root:" not in output


@pytest.mark.integration
async def test_a_workbook_that_no_check_knows_kills_no_more_than_its_call(tmp_path):
    data = '<row r="&#49;"><c r="A&#49;"><v>1</v></c><c r="XF&#68;&#49;048576"><v>2</v></c></row>'
    (tmp_path / "hidden.xlsx").write_bytes(packed_workbook({"S": data}))
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(root=tmp_path))
        result = await engine.execute("data_analyzer__describe", {"file": "hidden.xlsx"})
        again = await engine.execute("data_analyzer__query", {"sql": "SELECT 1"})
    assert (result.is_success is False or result.output["rows"] <= 2) and again.is_success


# Space on disk


def test_space_on_disk_is_private_and_given_back():
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "spilled").write_bytes(b"x")
    assert not folder.exists()


def test_unused_scratch_folders_are_removed_and_used_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remaining = Path(tempfile.mkdtemp(prefix="ferrule-data-"))
    (remaining / "spilled").write_bytes(b"x")
    with scratch_folder() as used:
        for folder in (remaining, used):
            os.utime(folder, (0, 0))
        with scratch_folder() as other:
            assert sorted(tmp_path.iterdir()) == sorted([used, other])


def test_big_sorts_go_to_disk_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sql = "SELECT max(a) FROM (SELECT range AS a, md5(range::VARCHAR) AS b FROM range(1500000) ORDER BY b)"
    output = analyzer_in(tmp_path, memory_mb=64, timeout=240).query(sql)
    assert output["rows"] == [[1_499_999]] and list(tmp_path.iterdir()) == []
