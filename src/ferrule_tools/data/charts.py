"""Charts: queries a limited number of points, and draws them."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ferrule.errors import MissingExtra, Retry
from ferrule_tools.data.files import quote_name
from ferrule_tools.data.limits import Column
from ferrule_tools.data.query import FileDatabase, is_date_type, is_number_type, query_columns, require_columns

ChartKind: TypeAlias = Literal["bar", "line", "scatter", "histogram", "pie"]
Aggregate: TypeAlias = Literal["sum", "avg", "min", "max", "median", "count"]

_MAX_POINTS: Final = {"bar": 100, "line": 5_000, "scatter": 5_000, "pie": 1_000}
_MAX_SERIES: Final = 10
_MAX_SLICES: Final = 10
_BINS: Final = 30


class ChartSeries(NamedTuple):
    name: str
    values: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoints:
    kind: ChartKind
    x_name: str
    x: list[Any]
    """For a histogram: the borders of its bars, one more than there are bars."""
    series: list[ChartSeries]
    notes: list[str] = field(default_factory=list)


def load_points(
    database: FileDatabase, source: str, kind: ChartKind, x: str, y: Sequence[str], aggregate: Aggregate | None
) -> ChartPoints:
    """Query the points of a chart; `source` is anything that can follow FROM."""
    columns = query_columns(database, source)
    (x_column,) = require_columns([x], columns, "the data")
    y_columns = require_columns(y, columns, "the data")
    if kind == "histogram":
        return _load_histogram(database, source, x_column)
    if len(y_columns) > _MAX_SERIES:
        raise Retry(f"{len(y_columns)} columns are too many for one chart: give up to {_MAX_SERIES} in y.")
    if not y_columns and kind in ("bar", "pie"):
        aggregate = aggregate or "count"
    if aggregate != "count":
        _require_numbers(y_columns, kind)
    if kind == "pie" and len(y_columns) > 1:
        raise Retry("a pie shows one column: give one in y.")
    return _load_series(database, source, kind, x_column, y_columns, aggregate)


def _load_series(
    database: FileDatabase,
    source: str,
    kind: ChartKind,
    x_column: Column,
    y_columns: Sequence[Column],
    aggregate: Aggregate | None,
) -> ChartPoints:
    max_points, notes = _MAX_POINTS[kind], []
    if aggregate is None:
        values = [(column.name, _number_sql(column)) for column in y_columns]
        grouping = ""
    else:
        values = [
            (f"{aggregate} of {column.name}", f"CAST({aggregate}({quote_name(column.name)}) AS DOUBLE)")
            for column in y_columns
        ] or [("count", "CAST(count(*) AS DOUBLE)")]
        grouping = "GROUP BY 1"
    order = ""
    is_ordered = is_number_type(x_column.type) or is_date_type(x_column.type)
    if kind == "line" or (aggregate is not None and is_ordered):
        order = "ORDER BY 1"
    elif aggregate is not None and kind in ("bar", "pie"):
        order = "ORDER BY 2 DESC, 1"
    sample = ""
    if kind == "scatter" and aggregate is None:
        ((count,),) = database.rows(f"SELECT count(*) FROM {source}")
        if count > max_points:
            sample = f"USING SAMPLE reservoir({max_points} ROWS) REPEATABLE (1)"
            notes.append(f"{max_points:,} of {count:,} points are drawn, chosen at random")
    x_sql = _number_sql(x_column) if is_number_type(x_column.type) else quote_name(x_column.name)
    selected = ", ".join([x_sql, *(sql for _, sql in values)])
    rows = database.rows(f"SELECT {selected} FROM {source} {grouping} {order} {sample} LIMIT {max_points + 1}")
    if len(rows) > max_points:
        raise Retry(
            f"there are more than {max_points:,} points in this {kind} chart: combine them with aggregate, or select "
            "fewer in sql (GROUP BY, LIMIT, date_trunc)."
        )
    if not rows:
        raise Retry("there are no rows to draw.")
    series: list[ChartSeries] = [
        ChartSeries(name, [math.nan if row[index + 1] is None else row[index + 1] for row in rows])
        for index, (name, _) in enumerate(values)
    ]
    points = ChartPoints(kind=kind, x_name=x_column.name, x=[row[0] for row in rows], series=series, notes=notes)
    return _merge_small_slices(points) if kind == "pie" else points


def _load_histogram(database: FileDatabase, source: str, x_column: Column) -> ChartPoints:
    _require_numbers([x_column], "histogram")
    value = _number_sql(x_column)
    finite = f"FROM {source} WHERE isfinite({value})"
    ((low, high, count),) = database.rows(f"SELECT min({value}), max({value}), count(*) {finite}")
    if not count:
        raise Retry(f"there are no numbers in {x_column.name!r} to draw.")
    span = (high - low) or float(_BINS)
    if not math.isfinite(span):
        raise Retry(f"the numbers in {x_column.name!r} are too far apart to be drawn: select some of them in sql.")
    rows = database.rows(
        f"SELECT CAST(least(floor(({value} - ?) / ? * {_BINS}), {_BINS - 1}) AS INTEGER), count(*) {finite} GROUP BY 1",
        low,
        span,
    )
    counts = dict(rows)
    series = ChartSeries("count", [float(counts.get(index, 0)) for index in range(_BINS)])
    borders = [low + span * index / _BINS for index in range(_BINS + 1)]
    return ChartPoints(kind="histogram", x_name=x_column.name, x=borders, series=[series])


def _require_numbers(columns: Sequence[Column], kind: str) -> None:
    if not columns:
        raise Retry(f"a {kind} chart needs y: name the columns with its numbers.")
    for column in columns:
        if not is_number_type(column.type):
            raise Retry(f"{column.name!r} has no numbers but {column.type}: name another column, or CAST it in sql.")


def _number_sql(column: Column) -> str:
    return f"CAST({quote_name(column.name)} AS DOUBLE)"


def _merge_small_slices(points: ChartPoints) -> ChartPoints:
    ((name, values),) = points.series
    slices = [(label, value) for label, value in zip(points.x, values, strict=True) if value == value]
    if any(value < 0 for _, value in slices) or not 0 < sum(value for _, value in slices) < math.inf:
        raise Retry("a pie chart needs finite positive numbers: draw a bar chart instead.")
    slices.sort(key=lambda each: -each[1])
    notes = list(points.notes)
    if len(slices) > _MAX_SLICES:
        rest = slices[_MAX_SLICES - 1 :]
        slices = [*slices[: _MAX_SLICES - 1], ("other", sum(value for _, value in rest))]
        notes.append(f"{len(rest)} small slices are combined as 'other'")
    merged = ChartSeries(name, [value for _, value in slices])
    return ChartPoints(kind="pie", x_name=points.x_name, x=[label for label, _ in slices], series=[merged], notes=notes)


# Fonts: matplotlib's own font has no Chinese characters, but a system font may have them

DEFAULT_FONT: Final = "DejaVu Sans"
_PREFERRED_FONTS: Final = (
    *("notosanscjk", "notosanssc", "notosanshans", "sourcehansans", "pingfang", "hiraginosansgb", "msyh", "microhei"),
    *("zenhei", "simhei", "stheiti", "heiti", "droidsansfallback", "arialunicode", "simsun", "songti", "cjk"),
    "notosans",
)
"""File names of fonts with many characters, the most readable first."""
_EXCLUDED_FONTS: Final = ("lastresort", "emoji", "blank")
_MAX_FONTS_OPENED: Final = 400


def choose_fonts(text: str) -> tuple[list[str], str]:
    """Return fonts to try in this order for each character, and the characters that no font has."""
    from matplotlib.font_manager import findfont, fontManager

    names = [DEFAULT_FONT]
    missing = {letter for letter in text if letter.isprintable() and not letter.isspace()}
    missing -= _characters_in_font(findfont(DEFAULT_FONT), missing)
    for path in _rank_system_fonts() if missing else ():
        letters = _characters_in_font(path, missing)
        if letters:
            fontManager.addfont(path)
            names.append(fontManager.ttflist[-1].name)
            missing -= letters
        if not missing:
            break
    return names, "".join(sorted(missing))


def _rank_system_fonts() -> Iterator[str]:
    from matplotlib.font_manager import findSystemFonts

    def preference(path: str) -> tuple[int, bool, str]:
        name = _normalize_font_name(path)
        rank = next(
            (index for index, preferred in enumerate(_PREFERRED_FONTS) if preferred in name), len(_PREFERRED_FONTS)
        )
        return rank, "regular" not in name, path

    fonts = [
        path for path in findSystemFonts() if not any(word in _normalize_font_name(path) for word in _EXCLUDED_FONTS)
    ]
    yield from sorted(fonts, key=preference)[:_MAX_FONTS_OPENED]


def _normalize_font_name(path: str) -> str:
    return Path(path).name.lower().replace(" ", "").replace("-", "").replace("_", "")


def _characters_in_font(path: str, letters: set[str]) -> set[str]:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        return {letter for letter in letters if font.get_char_index(ord(letter))}
    except (RuntimeError, OSError, ValueError):  # not every file in a font folder is a font
        return set()


# Drawing

_FIGURE_SIZE: Final = (9.0, 5.5)
_DPI: Final = 110
_MAX_LABEL: Final = 30
_MAX_TITLE: Final = 120
_MAX_HORIZONTAL_LABELS: Final = 8
"""If there are more labels, they are rotated."""
_MAX_LABELS: Final = 40
NO_FONT: Final = (
    "no font of this system has the characters {missing!r}, so they are drawn as boxes. Install one that has them, "
    "such as Noto Sans CJK (on Debian: apt install fonts-noto-cjk)"
)


def draw_chart(points: ChartPoints, title: str, formats: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """Draw a chart. Return the picture in each of these formats (`png`, `svg`), and notes about it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "data") from None
    labels = [_format_label(value, _MAX_LABEL) for value in points.x]
    names = [_format_label(name, _MAX_LABEL) for name, _ in points.series]
    title, x_name = _format_label(title, _MAX_TITLE), _format_label(points.x_name, _MAX_TITLE)
    families, missing = choose_fonts("".join([title, x_name, *names, *labels]))
    notes = list(points.notes)
    if missing:
        notes.append(NO_FONT.format(missing=missing[:20]))
    with _drawing_settings(families):
        figure = Figure(figsize=_FIGURE_SIZE, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if points.kind == "histogram":
            axes.stairs(points.series[0].values, points.x, fill=True)
            axes.set_ylabel(names[0])
        elif points.kind == "pie":
            axes.pie(points.series[0].values, labels=labels, autopct="%1.1f%%", startangle=90, counterclock=False)
        else:
            _draw_series(axes, points, labels, names)
        axes.set_title(title)
        if points.kind != "pie":
            axes.set_xlabel(x_name)
            axes.grid(axis="y", alpha=0.3)
        pictures = {image_format: io.BytesIO() for image_format in formats}
        try:
            for image_format, picture in pictures.items():
                # Without a date, the same data is the same file.
                metadata = {"Date": None} if image_format == "svg" else None
                figure.savefig(picture, format=image_format, metadata=metadata)
            return {image_format: picture.getvalue() for image_format, picture in pictures.items()}, notes
        except (ValueError, OverflowError) as error:  # numbers or dates that an axis cannot represent
            raise Retry(f"the chart cannot be drawn: {str(error)[:200]} Leave out extreme values.") from None


@contextmanager
def _drawing_settings(families: list[str]) -> Iterator[None]:
    import logging
    import warnings

    import matplotlib

    # Labels are untrusted text: a $ in one is not a formula. Missing characters are reported in the notes.
    settings: Any = {"text.parse_math": False, "font.family": families, "svg.hashsalt": "ferrule"}
    log = logging.getLogger("matplotlib")
    level = log.level
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def _draw_series(axes: Any, points: ChartPoints, labels: list[str], names: list[str]) -> None:
    """Draw bars, lines or dots. Numbers and dates have their places on the axis of lines and dots, others are named."""
    values = [value for value in points.x if value is not None]
    has_numbers = bool(values) and all(isinstance(value, (int, float)) for value in values)
    has_dates = bool(values) and all(isinstance(value, date) for value in values)
    is_named = points.kind == "bar" or not (has_numbers or has_dates)
    places: list[Any] = list(range(len(labels)))
    if not is_named:
        places = [math.nan if value is None and has_numbers else value for value in points.x]
    width = 0.8 / len(names)
    for index, (name, (_, heights)) in enumerate(zip(names, points.series, strict=True)):
        if points.kind == "bar":
            bars = [place - 0.4 + width * (index + 0.5) for place in places]
            axes.bar(bars, heights, width=width, label=name)
        elif points.kind == "line":
            marker = "o" if len(labels) <= _MAX_LABELS else ""
            axes.plot(places, heights, label=name, marker=marker, markersize=4)
        else:
            axes.scatter(places, heights, label=name, s=14, alpha=0.7)
    if is_named:
        step = max(1, math.ceil(len(labels) / _MAX_LABELS))
        is_rotated = len(labels) > _MAX_HORIZONTAL_LABELS or any(len(label) > 12 for label in labels)
        style: dict[str, Any] = {"rotation": 45, "ha": "right"} if is_rotated else {"rotation": 0, "ha": "center"}
        axes.set_xticks(range(0, len(labels), step), labels[::step], **style)
    else:
        axes.tick_params(axis="x", labelrotation=30)
    if len(names) > 1:
        axes.legend()
    else:
        axes.set_ylabel(names[0])


def _format_label(value: Any, max_length: int) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "".join(letter if letter.isprintable() else " " for letter in str(value)[: max_length + 1])
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
