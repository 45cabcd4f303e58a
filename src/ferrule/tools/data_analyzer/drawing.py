"""A chart as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any, Final

from ferrule.errors import MissingExtra, Retry
from ferrule.tools.data_analyzer.chart import Points
from ferrule.tools.data_analyzer.fonts import families_for

_SIZE: Final = (9.0, 5.5)
_DOTS: Final = 110
_LONGEST_LABEL: Final = 30
_LONGEST_TITLE: Final = 120
_UPRIGHT: Final = 8
"""Labels up to which they stand beside each other."""
_MOST_LABELS: Final = 40
NO_FONT: Final = (
    "no font of this system has the characters {missing!r}, so that they are drawn as boxes. Install one that does, "
    "such as Noto Sans CJK (on Debian: apt install fonts-noto-cjk)"
)


def drawn(points: Points, title: str, forms: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """The picture in each of these forms (`png`, `svg`), and what should be known about it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "data") from None
    labels = [_label(value, _LONGEST_LABEL) for value in points.x]
    names = [_label(each.name, _LONGEST_LABEL) for each in points.series]
    title, x_name = _label(title, _LONGEST_TITLE), _label(points.x_name, _LONGEST_TITLE)
    families = families_for("".join([title, x_name, *names, *labels]))
    notes = list(points.notes)
    if families.missing:
        notes.append(NO_FONT.format(missing=families.missing[:20]))
    with _drawing(families.names):
        figure = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _DRAWN_BY[points.kind](axes, points, labels, names)
        axes.set_title(title)
        if points.kind != "pie":
            axes.set_xlabel(x_name)
            axes.grid(axis="y", alpha=0.3)
        try:
            return {form: _saved(figure, form) for form in forms}, notes
        except (ValueError, OverflowError) as error:  # numbers or days that no axis can hold
            raise Retry(f"the chart cannot be drawn: {str(error)[:200]} Leave out what is far away.") from None


@contextmanager
def _drawing(families: list[str]) -> Iterator[None]:
    import logging
    import warnings

    import matplotlib

    # Labels are texts of strangers: a $ in one is no formula. A missing letter is told in the answer.
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


def _saved(figure: Any, form: str) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format=form, metadata={"Date": None} if form == "svg" else None)
    return written.getvalue()


def _bars(axes: Any, points: Points, labels: list[str], names: list[str]) -> None:
    width = 0.8 / len(names)
    for index, (name, series) in enumerate(zip(names, points.series, strict=True)):
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(labels))]
        axes.bar(places, series.values, width=width, label=name)
    _name_places(axes, labels)
    _name_series(axes, names)


def _lines(axes: Any, points: Points, labels: list[str], names: list[str]) -> None:
    places, is_named = _places(points)
    marker = "o" if len(labels) <= _MOST_LABELS else ""
    for name, series in zip(names, points.series, strict=True):
        axes.plot(places, series.values, label=name, marker=marker, markersize=4)
    _finish_places(axes, labels, is_named)
    _name_series(axes, names)


def _dots(axes: Any, points: Points, labels: list[str], names: list[str]) -> None:
    places, is_named = _places(points)
    for name, series in zip(names, points.series, strict=True):
        axes.scatter(places, series.values, label=name, s=14, alpha=0.7)
    _finish_places(axes, labels, is_named)
    _name_series(axes, names)


def _histogram(axes: Any, points: Points, labels: list[str], names: list[str]) -> None:
    axes.stairs(points.series[0].values, points.x, fill=True)
    axes.set_ylabel(names[0])


def _pie(axes: Any, points: Points, labels: list[str], names: list[str]) -> None:
    axes.pie(points.series[0].values, labels=labels, autopct="%1.1f%%", startangle=90, counterclock=False)


_DRAWN_BY: Final[dict[str, Any]] = {
    "bar": _bars,
    "line": _lines,
    "scatter": _dots,
    "histogram": _histogram,
    "pie": _pie,
}


def _places(points: Points) -> tuple[list[Any], bool]:
    """Numbers and moments stand where they belong; other values stand one after the other, under their names."""
    values = [value for value in points.x if value is not None]
    if values and (all(isinstance(v, (int, float)) for v in values) or all(isinstance(v, date) for v in values)):
        return [
            math.nan if value is None and isinstance(values[0], (int, float)) else value for value in points.x
        ], False
    return list(range(len(points.x))), True


def _finish_places(axes: Any, labels: list[str], is_named: bool) -> None:
    if is_named:
        _name_places(axes, labels)
    else:
        axes.tick_params(axis="x", labelrotation=30)


def _name_places(axes: Any, labels: list[str]) -> None:
    step = max(1, math.ceil(len(labels) / _MOST_LABELS))
    turned = len(labels) > _UPRIGHT or any(len(label) > 12 for label in labels)
    axes.set_xticks(
        range(0, len(labels), step), labels[::step], rotation=45 if turned else 0, ha="right" if turned else "center"
    )


def _name_series(axes: Any, names: list[str]) -> None:
    if len(names) > 1:
        axes.legend()
    else:
        axes.set_ylabel(names[0])


def _label(value: Any, longest: int) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "".join(letter if letter.isprintable() else " " for letter in str(value)[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
