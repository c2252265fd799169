"""Charts as Vega-Lite specifications, drawn when the page is made: the page has static SVG and needs no script.

Colours are the stylesheet's variables, so that one drawing serves light, dark and print. The drawing of a text is
harmless because only the elements of `DRAWN` are kept and texts are made visible before they are drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final
from xml.etree import ElementTree

from markupsafe import Markup

from audit.text.unsafe import visible

SVG: Final = "http://www.w3.org/2000/svg"
DRAWN: Final = frozenset("svg g path rect line text tspan circle title desc defs clipPath".split())
"""Elements of a drawing that the page keeps."""
STYLED: Final = ("class", "style", "aria-", "role", "font-family", "pointer-events", "cursor")
"""Beginnings of the attributes that the stylesheet or the figure replaces."""
LABEL: Final = 60
"""Characters of a text in a drawing."""
SERIES: Final = tuple(f"var(--series-{number})" for number in range(1, 7))
"""Colours of series, in order."""
_INK, _QUIET, _LINE = "var(--ink)", "var(--quiet)", "var(--line)"
CONFIG: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "background": None,
        "font": "Liberation Sans, Arial, Helvetica, sans-serif",
        "padding": 6,
        "view": {"stroke": None},
        "axis": {
            "labelColor": _QUIET,
            "titleColor": _QUIET,
            "domainColor": _LINE,
            "tickColor": _LINE,
            "gridColor": _LINE,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 260,
            "gridOpacity": 0.6,
        },
        "legend": {"labelColor": _INK, "titleColor": _QUIET, "labelFontSize": 12, "titleFontSize": 12},
        "header": {"labelColor": _INK, "titleColor": _QUIET, "labelFontSize": 12, "labelFontWeight": "bold"},
        "text": {"color": _INK, "fontSize": 12},
        "rule": {"color": _QUIET},
        "bar": {"color": SERIES[0]},
        "rect": {"color": SERIES[0]},
        "line": {"color": SERIES[0], "strokeWidth": 2},
        "point": {"color": SERIES[0], "filled": True, "size": 50},
        "tick": {"color": SERIES[0]},
        "area": {"color": SERIES[0], "opacity": 0.25},
        "range": {"category": list(SERIES)},
    }
)
"""How every chart looks."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its numbers.

    title: the caption. description: what it shows and how to read it, for people who do not see it.
    columns, rows: the numbers that are drawn, as the table below the drawing.
    spec: the Vega-Lite specification without data, size of text and colours; its data are `rows` by `columns`, named
        by `fields` (the names in the specification, in the order of the columns).
    """

    title: str
    description: str
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    spec: Mapping[str, Any]


DrawAll = Callable[[Sequence[Chart]], Sequence[Markup]]
"""Draws charts, in their order."""


def drawn(charts: Sequence[Chart]) -> tuple[Markup, ...]:
    """The drawings of charts, one after another."""
    return tuple(svg(chart) for chart in charts)


def svg(chart: Chart) -> Markup:
    """The drawing, with its title and description inside; these alone where nothing is installed that draws."""
    if find_spec("vl_convert") is None:
        text = f"{chart.title}. {chart.description} (no drawing: pip install 'specaudit[engine]')"
        return Markup("<p>{}</p>").format(visible(text))
    # imported late: it starts a JavaScript engine, which takes most of a second
    import vl_convert

    values = [dict(zip(chart.fields, map(_label, row), strict=True)) for row in chart.rows]
    document = {
        **_visible(chart.spec),
        "data": {"values": values},
        "config": {**CONFIG, **chart.spec.get("config", {})},
    }
    drawn = vl_convert.vegalite_to_svg(document, vl_version="6.1", allowed_base_urls=[])
    root = ElementTree.fromstring(drawn)
    _strip(root)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": visible(f"{chart.title}. {chart.description}")}
    for place, (name, text) in enumerate((("title", chart.title), ("desc", chart.description))):
        element = ElementTree.Element(name)
        element.text = visible(text)
        root.insert(place, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _visible(value: Any) -> Any:
    """A part of a specification with visible texts."""
    if isinstance(value, Mapping):
        return {key: _visible(part) for key, part in value.items()}
    return [_visible(part) for part in value] if isinstance(value, list | tuple) else _label(value)


def _label(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible(value[: LABEL + 1])
    return text if len(value) <= LABEL else f"{text[:LABEL]}..."


def _strip(element: ElementTree.Element) -> None:
    """Take out what is no drawing and what the stylesheet does. HTML needs no namespace in names."""
    element.tag = element.tag.removeprefix(f"{{{SVG}}}")
    for key in [key for key in element.attrib if key.startswith((*STYLED, "on")) or "href" in key]:
        del element.attrib[key]
    for child in list(element):
        if child.tag.removeprefix(f"{{{SVG}}}") in DRAWN:
            _strip(child)
        else:
            element.remove(child)


def longest(texts: Sequence[str]) -> int:
    """Characters of the longest text as drawn; 0 without one."""
    return max((len(str(_label(text))) for text in texts), default=0)
