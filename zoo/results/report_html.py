"""Text as HTML: everything is escaped, unless it was made here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Any


class Html(str):
    """HTML that is shown as it is; any other text is escaped when it is put into a page."""


def html(template: str, **values: Any) -> Html:
    """A template with `$name` for each value, which is escaped unless it is `Html`; None is empty."""
    return Html(Template(template).substitute({name: _safe(value) for name, value in values.items()}))


def join(parts: Iterable[Any], between: str = '') -> Html:
    """Parts one after the other, each escaped unless it is `Html`."""
    return Html(_safe(between).join(_safe(part) for part in parts))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], kind: str) -> Html:
    """A table; a row of one cell is a heading of those below. On a narrow screen cells may show their heads, by the kind."""
    heads = join(html('<th scope="col">$name</th>', name=name) for name in head)
    body = join(_row(head, row) for row in rows)
    return html(
        '<table class="$kind"><thead><tr>$heads</tr></thead><tbody>$body</tbody></table>',
        kind=kind,
        heads=heads,
        body=body,
    )


def section(title: str, body: Any, name: str) -> Html:
    """A part of a page with its heading; empty without a body."""
    return (
        html('<section id="$name"><h2>$title</h2>$body</section>', title=title, body=body, name=name)
        if body
        else Html()
    )


def paragraph(text: Any, kind: str = '') -> Html:
    """A paragraph; empty without text."""
    return html('<p class="$kind">$text</p>', text=text, kind=kind) if text else Html()


def code(text: Any) -> Html:
    """Something that one types, inside a sentence."""
    return html('<code>$text</code>', text=text)


def block(text: Any) -> Html:
    """Lines that one types."""
    return html('<pre><code>$text</code></pre>', text=text)


def _row(head: Sequence[Any], row: Sequence[Any]) -> Html:
    if len(row) == 1:
        return html('<tr class="heading"><th scope="rowgroup" colspan="$n">$name</th></tr>', n=len(head), name=row[0])
    return html('<tr>$cells</tr>', cells=join(_cell(*pair) for pair in zip(head, row, strict=True)))


def _cell(head: Any, value: Any) -> Html:
    return html('<td data-head="$head">$value</td>', head=re.sub('<[^>]*>', '', head), value=value)


def _safe(value: Any) -> str:
    return value if isinstance(value, Html) else '' if value is None else escape(str(value), quote=True)
