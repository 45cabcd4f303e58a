"""Charts: what is drawn, where it is kept, and which letters it can show."""

import pytest

from ferrule import ToolEngine
from ferrule.core.content import Image
from ferrule.errors import Refuse, Retry
from ferrule_tools.data import data_analyzer_tools
from ferrule_tools.data.charts import load_points
from ferrule_tools.data.files import TypeDetection
from ferrule_tools.data.limits import DataAnalyzerConfig
from ferrule_tools.data.query import open_database
from ferrule_tools.files.workspace import Workspace
from tests.ferrule_tools.data.data_files import SALES, analyzer_in

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib", reason='matplotlib is not installed: pip install "ferrule[data]"')


def points(folder, sql, kind, x, *y, aggregate=None):
    with open_database(Workspace.at(folder), DataAnalyzerConfig(), TypeDetection.SAMPLE) as database:
        database.restrict_to_files({})
        return load_points(database, f"({sql})", kind, x, list(y), aggregate)


def png_of(draw_chart):
    (image,) = draw_chart.parts
    assert isinstance(image, Image) and image.mime_type == "image/png"
    return image.data


@pytest.mark.integration
async def test_a_chart_is_drawn_kept_and_shown_through_the_engine(tmp_path):
    (tmp_path / "sales.csv").write_text(SALES)
    options = {"kind": "bar", "file": "sales.csv", "x": "region", "y": "amount", "aggregate": "sum"}
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(root=tmp_path))
        result = await engine.execute("data_analyzer__chart", {**options, "save_as": "charts/sales.png"})
    (image,) = result.content
    assert isinstance(image, Image) and image.data == (tmp_path / "charts" / "sales.png").read_bytes()
    assert image.data.startswith(PNG) and (result.output["points"], result.output["path"]) == (3, "charts/sales.png")


@pytest.mark.parametrize("kind", ["bar", "line", "scatter", "histogram", "pie"])
def test_each_kind_of_chart_is_drawn(tmp_path, kind):
    (tmp_path / "sales.csv").write_text(SALES)
    x, y = ("amount", None) if kind == "histogram" else ("day", "amount")
    draw_chart = analyzer_in(tmp_path).chart(kind, x, y, file="sales.csv", title="Sales")
    assert png_of(draw_chart).startswith(PNG) and "notes" not in draw_chart.data


def test_a_pie_needs_finite_positive_numbers(tmp_path):
    for value in ("'inf'::DOUBLE", "1.7e308", "-1", "0"):
        with pytest.raises(Retry, match="a pie chart needs finite positive numbers"):
            analyzer_in(tmp_path).chart("pie", "x", "y", sql=f"SELECT x, {value} AS y FROM range(2) t(x)")


def test_an_svg_is_kept_and_a_png_is_shown(tmp_path):
    draw_chart = analyzer_in(tmp_path).chart("line", "a", ["a", "b"], sql="SELECT 1 AS a, 2 AS b", save_as="c.svg")
    assert png_of(draw_chart).startswith(PNG)
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<?xml") and list(tmp_path.iterdir()) == [tmp_path / "c.svg"]


def test_a_chart_never_replaces_a_file(tmp_path):
    (tmp_path / "c.png").write_bytes(b"mine")
    with pytest.raises(Retry, match="'c.png' exists already"):
        analyzer_in(tmp_path).chart("bar", "a", sql="SELECT 1 AS a", save_as="c.png")
    assert (tmp_path / "c.png").read_bytes() == b"mine"


def test_a_chart_is_not_kept_outside_the_workspace_nor_where_code_stands(tmp_path):
    (tmp_path / "inner").mkdir()
    for path in ("../c.png", "/etc/c.png", "tools/c.png", ".git/hooks/c.svg", "out/../../c.png"):
        with pytest.raises(Refuse):
            analyzer_in(tmp_path / "inner").chart("bar", "a", sql="SELECT 1 AS a", save_as=path)
    assert list((tmp_path / "inner").iterdir()) == [] and not (tmp_path / "c.png").exists()


def test_a_chart_is_not_kept_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "way").symlink_to(tmp_path / "outside")
    with pytest.raises(Refuse, match="is a link"):
        analyzer_in(tmp_path / "inner").chart("bar", "a", sql="SELECT 1 AS a", save_as="way/c.png")
    assert list((tmp_path / "outside").iterdir()) == []


def test_rows_are_counted_or_put_together_and_the_largest_come_first(tmp_path):
    data = "SELECT unnest(['a', 'b', 'b', 'c']) AS k, unnest([1, 2, 3, 9]) AS v"
    assert points(tmp_path, data, "bar", "k").x == ["b", "a", "c"]
    summed = points(tmp_path, data, "bar", "k", "v", aggregate="sum")
    assert (summed.x, summed.series[0].values, summed.series[0].name) == (["c", "b", "a"], [9.0, 5.0, 1.0], "sum of v")


def test_a_line_goes_on_in_the_order_of_its_days(tmp_path):
    data = "SELECT unnest([DATE '2024-03-01', DATE '2024-01-01']) AS day, unnest([3, 1]) AS v"
    assert points(tmp_path, data, "line", "day", "v").series[0].values == [1.0, 3.0]


def test_a_histogram_counts_all_its_numbers(tmp_path):
    tool = points(tmp_path, "SELECT range AS v FROM range(1000) UNION ALL SELECT NULL", "histogram", "v")
    assert sum(tool.series[0].values) == 1000 and (tool.x[0], tool.x[-1]) == (0.0, 999.0)
    same = points(tmp_path, "SELECT 5 AS v FROM range(3)", "histogram", "v")
    assert same.series[0].values[0] == 3.0
    with pytest.raises(Retry, match="too far apart"):
        points(tmp_path, "SELECT unnest([-1.7e308, 1.7e308]) AS v", "histogram", "v")
    infinite = points(tmp_path, "SELECT unnest([1.0, 'inf'::DOUBLE, 'nan'::DOUBLE]) AS v", "histogram", "v")
    assert sum(infinite.series[0].values) == 1.0


def test_small_slices_of_a_pie_become_one(tmp_path):
    tool = points(tmp_path, "SELECT range AS k, range + 1 AS v FROM range(30)", "pie", "k", "v")
    assert len(tool.x) == 10 and tool.x[-1] == "other" and sum(tool.series[0].values) == 465.0


def test_too_many_points_are_sampled_or_refused(tmp_path):
    dots = points(tmp_path, "SELECT range AS a FROM range(100000)", "scatter", "a", "a")
    assert len(dots.x) == 5_000 and dots.notes == ["5,000 of 100,000 points are drawn, chosen at random"]
    with pytest.raises(Retry, match="more than 100 points"):
        points(tmp_path, "SELECT range AS a FROM range(101)", "bar", "a", "a")


def test_errors_say_why_a_chart_cannot_be_drawn(tmp_path):
    data = "SELECT 'x' AS k, 1 AS v"
    for kind, x, y, settings in (
        ("bar", "z", [], "has no column 'z'"),
        ("line", "v", ["k"], "'k' has no numbers but VARCHAR"),
        ("line", "v", [], "needs y"),
        ("histogram", "k", [], "has no numbers"),
        ("bar", "k", ["v"] * 11, "too many"),
    ):
        with pytest.raises(Retry, match=settings):
            points(tmp_path, data, kind, x, *y)
    with pytest.raises(Retry, match="no rows"):
        points(tmp_path, f"{data} WHERE false", "bar", "k", "v")
    with pytest.raises(Retry, match="cannot be drawn"):
        analyzer_in(tmp_path).chart("line", "a", "a", sql="SELECT unnest([-1e308, 1e308]) AS a")
    with pytest.raises(Retry, match="either file or sql"):
        analyzer_in(tmp_path).chart("bar", "a")
    with pytest.raises(Retry, match=r"must end in \.png or \.svg"):
        analyzer_in(tmp_path).chart("bar", "a", sql="SELECT 1 AS a", save_as="c.jpg")


@pytest.mark.integration
def test_labels_are_no_formulas_and_may_hold_anything(tmp_path):
    sql = r"SELECT unnest(['$\frac{1', '$x^2$', repeat('很长', 500), chr(1) || chr(10), '%s{}', '\\', NULL]) AS k"
    draw_chart = analyzer_in(tmp_path).chart("bar", "k", sql=sql, title=r"$\undefined{ % _ ^", save_as="c.svg")
    assert draw_chart.data["points"] == 7 and (tmp_path / "c.svg").stat().st_size > 1000


def test_a_query_cannot_leave_its_brackets(tmp_path):
    draw_chart = analyzer_in(tmp_path).chart("bar", "a", sql="SELECT 1 AS a; -- the end")
    assert draw_chart.data["points"] == 1
    for sql in ("SELECT 1 AS a) t, read_text('/etc/passwd') --", "SELECT 1; SELECT 2", "COPY (SELECT 1) TO 'x.csv'"):
        with pytest.raises((Retry, Refuse)):
            analyzer_in(tmp_path).chart("bar", "a", sql=sql)


# Letters


@pytest.mark.integration
async def test_chinese_labels_are_drawn_with_a_font_of_the_system_that_has_them(tmp_path, monkeypatch):
    font(tmp_path / "share" / "fonts" / "SomeCJK.ttf", "各地区销售额北京")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    (tmp_path / "a.csv").write_text("地区,销售额\n北京,3\n")
    options = {"kind": "bar", "file": "a.csv", "x": "地区", "y": "销售额", "title": "各地区销售额"}
    async with ToolEngine() as engine:
        engine.register(*data_analyzer_tools(root=tmp_path))
        result = await engine.execute("data_analyzer__chart", options)
    assert result.is_success and "notes" not in result.output


def test_characters_without_a_font_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", list)
    draw_chart = analyzer_in(tmp_path).chart("bar", "a", sql="SELECT 'Größe €' AS a", title="销售额")
    (note,) = draw_chart.data["notes"]
    assert "no font of this system has the characters '售销额'" in note and "fonts-noto-cjk" in note


def font(path, letters):
    """A font that has these letters, each a square."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pen = pytest.importorskip("fontTools.pens.ttGlyphPen").TTGlyphPen(None)
    for move, *places in (("moveTo", (100, 0)), ("lineTo", (900, 0)), ("lineTo", (900, 800)), ("lineTo", (100, 800))):
        getattr(pen, move)(*places)
    pen.closePath()
    names = [".notdef", *(f"uni{ord(letter):04X}" for letter in letters)]
    square = pen.glyph()
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(letter): f"uni{ord(letter):04X}" for letter in letters})
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Some CJK", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path.parent.mkdir(parents=True)
    builder.save(path)
