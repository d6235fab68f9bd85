"""Text in a page: what is escaped, and what is not."""

from __future__ import annotations

from zoo.results.report_html import Html, code, html, join, paragraph, section, table

NASTY = '<b a="1" b=\'2\'>&$name'
SAFE = '&lt;b a=&quot;1&quot; b=&#x27;2&#x27;&gt;&amp;$name'


def test_text_is_escaped_and_its_dollars_are_no_placeholders() -> None:
    assert html('<i title="$name">$name</i>', name=NASTY) == f'<i title="{SAFE}">{SAFE}</i>'
    assert join([NASTY, Html('<br>'), None, 3]) == f'{SAFE}<br>3'
    assert code(NASTY) == f'<code>{SAFE}</code>'


def test_html_is_not_escaped_twice() -> None:
    assert paragraph(html('a $b', b='<')) == '<p class="">a &lt;</p>'


def test_parts_without_content_are_empty() -> None:
    assert paragraph('') == paragraph(None) == section('Title', Html(), 'name') == ''


def test_table_has_a_heading_for_a_row_of_one_cell_and_heads_in_its_cells() -> None:
    made = table(('A', NASTY), [['both'], [1, '<']], 'kind')
    assert '<th scope="rowgroup" colspan="2">both</th>' in made
    assert '<td data-head="A">1</td>' in made and '>&lt;</td>' in made
    assert '<b' not in made.replace('<tbody', '')
