"""Links from pages to files outside of docs/: each such file becomes a page of the site, under files/.

In the repository these links open the file itself. On the site a Markdown file and a notebook are pages, any other text is shown
as code, and a folder is a list of its files. Pages that are reached this way may link further.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'
LINK = re.compile(r'(\]\(|src(?:set)?=")([^)\s#"]+)(#[^)\s"]*)?([)"])')
SOURCE = re.compile(r'<source[^>]*>')  # a dark form: the site darkens the light one itself
PICTURES = ('.gif', '.png', '.svg')
LANGUAGES = {'.py': 'python', '.sh': 'sh', '.yaml': 'yaml', '.yml': 'yaml', '.json': 'json', '.cff': 'yaml'}
EDGE = '~~~~'
IS_ADDRESS = re.compile(r'\w+://|data:|mailto:')


def page_of(path: Path) -> str:
    """The page of a file or folder of the repository, as a path in docs/: 'speed.md', 'files/examples/my_env.py.md'."""
    if path == ROOT / 'dizoo_configs':
        return 'reference/bundled_configs.md'
    if path.is_relative_to(DOCS) and path.is_file():
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return (
        f'files/{name}' if path.suffix == '.md' else f'files/{name}/index.md' if path.is_dir() else f'files/{name}.md'
    )


def targets(path: Path, text: str) -> dict[str, Path]:
    """The links of a page to files of the repository that exist: {link as written: file}."""
    links = (match[2] for match in LINK.finditer(_without_code(text)) if not IS_ADDRESS.match(match[2]))
    found = {link: Path(os.path.normpath(path.parent / link)) for link in links}
    return {link: target for link, target in found.items() if target.exists() and target.is_relative_to(ROOT)}


def rewritten(path: Path, text: str) -> str:
    """The text of a page of the repository with links that lead to the pages of the site."""
    found = targets(path, text)
    here = os.path.dirname(page_of(path))

    def replace(match: re.Match[str]) -> str:
        target = found.get(match[2])
        if target is None:
            return match[0]
        page = os.path.relpath(page_of(target), here or '.')
        return f'{match[1]}{Path(page).as_posix()}{match[3] or ""}{match[4]}'

    return SOURCE.sub('', LINK.sub(replace, text))


def outside_pages() -> dict[str, str]:
    """{page: Markdown} of all files outside of docs/ that pages link to, directly or through other such files."""
    queue = [path for path in sorted(DOCS.rglob('*.md'))] + [ROOT / 'CHANGELOG.md', ROOT / 'CONTRIBUTING.md']
    seen: dict[Path, str] = {}
    while queue:
        path = queue.pop(0)
        if path in seen:
            continue
        seen[path] = text = content_of(path)
        queue += [target for target in targets(path, text).values() if target.suffix not in PICTURES]
    return {page_of(path): rewritten(path, text) for path, text in seen.items() if page_of(path).startswith('files/')}


def content_of(path: Path) -> str:
    """A file or folder as Markdown."""
    if path.is_dir():
        names = sorted(child.name for child in path.iterdir() if child.is_file() and not child.name.startswith('.'))
        return f'# {path.relative_to(ROOT).as_posix()}\n\n' + '\n'.join(
            f'- [{name}]({path.name}/{name})' for name in names
        )
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.md':
        return text
    if path.suffix == '.ipynb':
        return '\n\n'.join(_of_cell(cell) for cell in json.loads(text)['cells'])
    return f'# {path.relative_to(ROOT).as_posix()}\n\n{EDGE}{LANGUAGES.get(path.suffix, "text")}\n{text.rstrip()}\n{EDGE}\n'


def _of_cell(cell: dict[str, Any]) -> str:
    """A cell of a notebook as Markdown: its text, or its code with what it shows."""
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
        return source
    parts = [f'{EDGE}python\n{source}\n{EDGE}']
    for output in cell['outputs']:
        data = output.get('data', {'text/plain': output.get('text', [])})
        picture = ''.join(data.get('image/svg+xml', []))
        if picture:
            encoded = b64encode(picture.encode()).decode()
            parts.append(f'<img alt="the figure that this cell shows" src="data:image/svg+xml;base64,{encoded}">')
        else:
            parts.append(f'{EDGE}text\n{"".join(data["text/plain"]).rstrip()}\n{EDGE}')
    return '\n\n'.join(parts)


def _without_code(text: str) -> str:
    return re.sub(r'(?ms)^(```|~~~~).*?^\1', '', text)
