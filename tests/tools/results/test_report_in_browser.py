"""The report page in a real Chromium, narrow and wide, light and dark: no errors, curves are visible, all text fits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real_runs import made_run, train_seeds, write_run
from tests.tools.results.made_runs import swept
from zoo.tools.cli.command import main

pytestmark = pytest.mark.slow

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
VIEWS = [(400, 'light'), (1400, 'dark')]
LONG = 'an_experiment_with_a_long_name_' * 3
NASTY = '<img src=x onerror=console.error("ran")> <script>console.error("ran")</script>'
CONTRAST = """element => {
  const light = color => color.match(/[0-9.]+/g).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = light(getComputedStyle(document.body).backgroundColor), ink = light(getComputedStyle(element).color);
  return (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
}"""
"""Contrast of an element's text with the page, as WCAG 2 defines it."""


@pytest.fixture(scope='module')
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f'no browser: none of {", ".join(NAMES)} is installed; apt-get install chromium')
    pytest.importorskip('matplotlib')
    api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed; pip install playwright')
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield started
        started.close()


@pytest.fixture(scope='module')
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports as the command writes them: of one run, of three, of two configs with a film, of one with a hostile name, of a sweep."""
    from PIL import Image

    folder = tmp_path_factory.mktemp('reports')
    three = train_seeds(folder / 'runs', [0, 1, 2])
    slow = train_seeds(folder / 'runs', [0], 'cartpole_ppo', f'exp_name={LONG}', 'policy.learn.learning_rate=1e-5')
    slow = slow.parent / LONG
    film = [Image.new('RGB', (64, 48), (40 * i, 0, 0)) for i in range(4)]
    film[0].save(folder / 'film.gif', save_all=True, append_images=film[1:])
    nasty = made_run([1000, 2000], [1, 2], name=NASTY, env=NASTY)
    write_run(folder / 'nasty', nasty)
    for run in swept(folder / 'sweep', 9):
        write_run(run.path, run)
    found = {}
    for name, words in {
        'one': [str(next(three.iterdir()))],
        'three': [str(three)],
        'two configs': [str(three), str(slow), '--video', str(folder / 'film.gif')],
        'nasty': [str(folder / 'nasty')],
        'sweep': [str(folder / 'sweep')],
    }.items():
        found[name] = folder / f'{name}.html'
        assert main(['report', *words, '-o', str(found[name])]) == 0
    return found


@pytest.mark.soak
@pytest.mark.parametrize('name', ['one', 'three', 'two configs', 'nasty', 'sweep'])
@pytest.mark.parametrize(('width', 'scheme'), VIEWS)
def test_page_opens_without_an_error_and_everything_fits(
    browser: Any, pages: dict[str, Path], name: str, width: int, scheme: Any
) -> None:
    context = browser.new_context(viewport={'width': width, 'height': 800}, color_scheme=scheme, offline=True)
    page, said, asked = context.new_page(), [], []
    page.on('console', lambda message: said.append(message.text))
    page.on('pageerror', lambda error: said.append(str(error)))
    page.on('request', lambda request: asked.append(request.url))
    page.goto(pages[name].as_uri())
    assert not said and not [url for url in asked[1:] if not url.startswith('data:')]

    assert page.evaluate('document.documentElement.scrollWidth') <= width
    right = 'all => Math.max(...all.filter(e => !e.closest("svg")).map(e => e.getBoundingClientRect().right))'
    assert page.eval_on_selector_all('body *', right) <= width

    [curve] = [svg for svg in page.query_selector_all('#curves figure > div > svg') if svg.is_visible()]
    box = curve.bounding_box()
    assert box['width'] > 0.75 * min(width, 1000) and box['height'] > 200
    lines = curve.query_selector_all('path[style*="--line-0"]')
    assert max(line.bounding_box()['width'] for line in lines) > box['width'] / 3
    assert 10 < min(text.bounding_box()['height'] * 2 for text in curve.query_selector_all('[id*="text_1"]'))

    for element in page.query_selector_all('h1, h2, p, dt, dd, td, th, figcaption, a, .state'):
        assert element.evaluate(CONTRAST) >= 4.5
    paper = page.evaluate('getComputedStyle(document.body).backgroundColor')
    assert (paper == 'rgb(255, 255, 255)') == (scheme == 'light')
    context.close()


@pytest.mark.soak
def test_film_is_shown_and_the_config_opens(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={'width': 400, 'height': 800})
    page.goto(pages['two configs'].as_uri())
    assert page.eval_on_selector('img', 'image => [image.naturalWidth, image.naturalHeight]') == [64, 48]
    details = page.query_selector_all('#repeat details')
    assert not details[0].query_selector('pre').is_visible()
    details[0].query_selector('summary').click(position={'x': 2, 'y': 8})
    assert 'id: CartPole-v1' in details[0].query_selector('pre').inner_text()
    assert page.evaluate('document.documentElement.scrollWidth') <= 400
    page.close()


@pytest.mark.soak
def test_curves_change_colour_with_the_page(browser: Any, pages: dict[str, Path]) -> None:
    from zoo.tools.results.plot import COLORS

    for scheme in ('light', 'dark'):
        page = browser.new_page(color_scheme=scheme)
        page.goto(pages['one'].as_uri())
        stroke = page.eval_on_selector('.wide path[style*="stroke: var(--line-0)"]', 'e => getComputedStyle(e).stroke')
        assert stroke == f'rgb{tuple(bytes.fromhex(COLORS[scheme][0][1:]))}'  # type: ignore[index]
        page.close()
