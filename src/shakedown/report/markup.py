"""HTML elements that are safe by construction: every text is escaped, every name is ours.

It never takes markup from anyone else.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from shakedown.report.escape import visible

VOID = frozenset({"meta", "br"})


class Html(str):
    """Markup as it goes into the page."""

    __slots__ = ()


Child = Html | str | None | Iterable["Child"]


def escaped(text: str) -> Html:
    """Without control, direction and undecodable characters, then without markup."""
    return Html(html.escape(visible(text), quote=True))


def join(children: Child) -> Html:
    if children is None:
        return Html()
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return escaped(children)
    return Html("".join(join(child) for child in children))


def tag(element: str, /, *children: Child, **attributes: str | None) -> Html:
    """`tag("a", "text", href="#x", class_="y")`; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if element in VOID else f"</{element}>"
    return Html(f"<{element}{written}>{join(children)}{end}")


def preformatted(lines: Iterable[str], **attributes: str | None) -> Html:
    """Lines as they stand, for commands and logs."""
    body = Html("\n".join(escaped(line.expandtabs(4)) for line in lines))
    return tag("pre", tag("code", body), **attributes)
