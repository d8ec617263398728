"""HTML and SVG whose text is always escaped.

    element("td", "a < b", **{"class": "figure"})  ->  <td class="figure">a &lt; b</td>

Children are text unless they are `Markup`, which only this module makes.
"""

from html import escape


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


# Elements that have no end tag.
VOID = frozenset({"br", "hr", "img", "meta"})


def element(tag: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """One element. In attribute names `_` stands for `-`, and one at the end is dropped.

    Attributes that are None or False are left out; True gives the name alone.
    """
    start = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """Children one after another, text escaped."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = f"{value:.4g}" if isinstance(value, float) else escape(str(value))
    return f' {name}="{shown}"'
