"""The kinds of files that tables stand in."""

import json

import pytest

from ferrule.errors import ExecutionFailed, Refuse, Retry
from tests.ferrule_tools.data.data_files import analyzer_in, parquet, workbook

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
