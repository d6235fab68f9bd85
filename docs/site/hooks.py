"""What mkdocs calls while it builds the site: adds the pages that no file in docs/ holds, and corrects links out of docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import gallery  # noqa: E402
import links  # noqa: E402
import reference  # noqa: E402

NAME = re.compile(r'[._](?=\w[^<>]*</code>)')  # where a name in code may break
OUTSIDE_WORKER, OWN_WORKER = 'https://unpkg.com/iframe-worker/shim', 'look/worker.js'


def on_config(config: Any, **_: Any) -> Any:
    """Fills the sections of the navigation that list what there is: a page for each policy, and the reference."""
    policies = sorted(path.relative_to(links.DOCS).as_posix() for path in (links.DOCS / 'policies').glob('*.md'))
    lists = {
        'Policies': policies,
        'Reference': [
            'reference/bundled_configs.md',
            *sorted(reference.pages()),
            'files/CHANGELOG.md',
            'files/CONTRIBUTING.md',
        ],
    }
    config['nav'] += [{title: pages} for title, pages in lists.items()]
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Adds the pages that are made here."""
    for page, text in {**links.outside_pages(), **reference.pages(), **gallery.pages()}.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of pages in docs/ to files outside lead to the pages of these."""
    path = links.DOCS / page.file.src_uri
    return links.rewritten(path, markdown) if path.exists() else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The script that lets search work in pages opened from a folder is the site's own, not one of another server.

    In tables, names break between their words alone: narrow pages have no room for the whole of 'policy.learn.clip_ratio'.
    """
    up = '../' * page.url.count('/')
    output = re.sub(r'<td.*?</td>', lambda cell: NAME.sub(r'\g<0><wbr>', cell[0]), output, flags=re.DOTALL)
    return output.replace(OUTSIDE_WORKER, f'{up}{OWN_WORKER}')


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Pages of the theme that are no page of the navigation, such as 404.html, load the site's own script, too.

    A server shows 404.html for addresses of any depth, so that its links begin at the root.
    """
    return output_content.replace(OUTSIDE_WORKER, f'/{OWN_WORKER}')
