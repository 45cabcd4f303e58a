"""Files that are not what they seem, or not where they seem to be."""

import io
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
from tests.ferrule_tools.data.data_files import analyzer_in, packed_workbook


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


@pytest.mark.parametrize("text", ["[" * 200_000 + "]" * 200_000, '{"a":' * 5_000 + "1" + "}" * 5_000, '{"a"' * 9_999])
def test_json_that_is_nested_very_deep_is_refused(tmp_path, text):
    (tmp_path / "deep.json").write_text(text)
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
