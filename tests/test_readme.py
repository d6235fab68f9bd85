"""README, docs and the other pages: their code is from examples/, the files that they name exist, README is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from zoo.backend.choose import WORTH_STEPS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'CHANGELOG.md', *sorted((ROOT / 'docs').glob('*.md'))]
README = (ROOT / 'README.md').read_text()
EXAMPLES = {path.name: path.read_text() for path in sorted((ROOT / 'examples').glob('*.py'))}
pages = pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)


def code_blocks(page: Path) -> list[str]:
    return re.findall(r'```python\n(.*?)```', page.read_text(), re.DOTALL)


def prose(page: Path) -> str:
    return re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r'^#+ (.*)$', prose(page), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading).strip().lower().replace(' ', '-') for heading in headings}


@pages
def test_page_code_is_that_of_an_example(page: Path) -> None:
    for block in code_blocks(page):
        assert any(block in example for example in EXAMPLES.values()), f'no file of examples/ has:\n{block}'


@pages
def test_page_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r'\]\(([^)\s]+)\)', prose(page)):
        if target.startswith('https://'):
            continue
        name, _, anchor = target.partition('#')
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f'{page.name} links to {target}'
        assert not anchor or anchor in anchors(path), f'{page.name} links to {target}, which has no such heading'


@pages
def test_page_names_only_files_that_exist(page: Path) -> None:
    folders = 'zoo|dizoo_configs|tests|benchmarks|examples|docs'
    for name in re.findall(rf'`((?:{folders})/[\w./*]*)`', prose(page)):
        assert list(ROOT.glob(name.rstrip('/'))), f'{name} does not exist'
    for name in re.findall(r'`(?:python |zoo train |zoo check-env )([\w/]+\.py)', prose(page)):
        assert (ROOT / name).exists() or name in EXAMPLES, f'{name} does not exist'


@pages
def test_page_lines_outside_of_tables_are_at_most_130_characters(page: Path) -> None:
    long = [line for line in page.read_text().splitlines() if len(line) > 130]
    assert not [line for line in long if page.name == 'README.md' or not line.startswith('|')]


def test_readme_has_at_most_130_lines_and_three_pictures() -> None:
    assert len(README.splitlines()) <= 130
    found = re.findall(r'(?:src(?:set)?="|\]\()(docs/images/[\w.]+)', README)
    assert len(found) >= 5 and all((ROOT / name).stat().st_size > 10_000 for name in found)


def test_readme_tables_have_the_marks_that_show_where_measurements_go() -> None:
    for name in ('learning', 'speed'):
        table = README[README.index(f'<!-- {name} -->') : README.index(f'<!-- /{name} -->')]
        assert table.count('\n|') >= 4


def test_docs_index_lists_every_page() -> None:
    index = (ROOT / 'docs' / 'index.md').read_text()
    assert {path.name for path in (ROOT / 'docs').glob('*.md')} - {'index.md'} <= set(
        re.findall(r'\((\w+\.md)\)', index)
    )


def test_speed_page_says_from_which_length_on_runs_are_compiled() -> None:
    assert f'{WORTH_STEPS:,} gradient steps' in (ROOT / 'docs' / 'speed.md').read_text()


def test_citation_is_of_this_version_and_licence() -> None:
    from zoo import __version__

    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == __version__ and citation['license'] == 'Apache-2.0'
