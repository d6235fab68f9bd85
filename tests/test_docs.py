"""The documentation: its code is from examples/, its commands and keys exist, each policy has a page, the site builds."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.torchrun import TORCHRUN
from tests.forked import run_python
from zoo.backend.choose import WORTH_STEPS
from zoo.config.section import value_at
from zoo.config.source import bundled_configs
from zoo.core.registry import POLICY_REGISTRY
from zoo.run.config import explain_config, resolve_config
from zoo.tools.cli.parser import COMMANDS, parse
from zoo.tools.sweep.batch import grid_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'
PAGES = [ROOT / 'README.md', *sorted(DOCS.rglob('*.md'))]
POLICIES = sorted(path.stem for path in (DOCS / 'policies').glob('*.md'))
BUNDLED = sorted(name for name in POLICY_REGISTRY.names() if POLICY_REGISTRY.get(name).__module__.startswith('zoo.'))
DOTTED = re.compile(r'`((?:env|policy|buffer|logger|checkpoint|cluster)\.[a-z_][\w.]*)[`=]')


def commands_of(page: Path) -> list[str]:
    """The commands of a page ('zoo ...'), from its shell blocks and its indented blocks."""
    text = page.read_text()
    blocks = re.findall(r'```(?:sh|bash|console)\n(.*?)```', text, re.DOTALL)
    outside = re.sub(r'```.*?```', '', text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace('\\\n', ' ').splitlines()]
    lines += [line[4:] for line in outside.replace('\\\n', ' ').splitlines() if line.startswith('    ')]
    return [line for line in lines if re.match(r'zoo \w', line)]


@pytest.mark.many
@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_page_commands_are_understood_and_their_keys_exist(page: Path) -> None:
    for line in commands_of(page):
        words = shlex.split(line, comments=True)[1:]
        if words[0] == 'help' or words[-1] == '--version':
            continue
        args = parse(words)  # an unknown command or option raises, as an unknown key does below
        config = getattr(args, 'config', None)
        if args.command in ('train', 'config') and config in bundled_configs() and not args.imports:
            members, fixed = grid_of(args.overrides)
            for member in members:
                overrides = [*fixed, *member.overrides]
                assert _keys_without_value(resolve_config(config, overrides), overrides) == []


def _keys_without_value(config: Any, overrides: Sequence[str]) -> list[str]:
    """The keys of overrides that the config lacks, or that have no value though one was given."""
    pairs = (override.removeprefix('+').partition('=') for override in overrides)
    return [key for key, _, value in pairs if value != 'null' and value_at(config, key) is None]


def test_page_commands_are_found() -> None:
    found = {line.split()[1] for page in PAGES for line in commands_of(page)}
    assert {'train', 'eval', 'config', 'list'} <= found
    unknown = found - set(COMMANDS) - {'help'}
    assert not unknown


def test_every_policy_has_a_page() -> None:
    assert POLICIES == BUNDLED


@pytest.mark.parametrize('name', POLICIES)
def test_policy_page_names_keys_of_the_policy_and_has_its_curve(name: str) -> None:
    text = (DOCS / 'policies' / f'{name}.md').read_text()
    keys = {row.key for row in explain_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}})}
    named = set(DOTTED.findall(text))
    assert named and not {key for key in named if key not in keys and not key.startswith('env.game')}
    assert f'(curves/{name}.svg)' in text and (DOCS / 'policies' / 'curves' / f'{name}.svg').exists()
    assert re.search(r'arxiv\.org/abs/|doi\.org/|ICML', text)
    assert any(f'zoo train {config}' in text for config in bundled_configs())


@pytest.mark.soak
def test_tutorial_word_by_word_in_an_empty_folder(tmp_path: Path) -> None:
    """Writes the files of the page and runs its commands in order, with the zoo of this checkout."""
    text = (DOCS / 'tutorial.md').read_text()
    step = re.compile(r'Save this as\s`([\w.]+)`:\n\n```python\n(.*?)```|```sh\n(.*?)```', re.DOTALL)
    environ = {'PYTHONPATH': str(ROOT), 'SDL_VIDEODRIVER': 'dummy', 'XDG_STATE_HOME': str(tmp_path / 'state')}
    for name, code, commands in step.findall(text):
        if name:
            (tmp_path / name).write_text(code)
        for line in commands.replace('\\\n', '').splitlines():
            words = shlex.split(line)
            assert words[0] == 'zoo'
            done = run_python('-P', '-m', *words, cwd=tmp_path, **environ)
            assert done.returncode == 0, f'{line}\n{done.stderr}'
            if words[1] == 'eval' and words[2] == 'first':
                assert float(re.findall(r'return (-?[\d.]+) ', done.stdout)[0]) >= 475
            if words[1:3] == ['compare', 'runs/cartpole_ppo']:
                assert 'a clear difference (chance alone' in done.stdout
    for name in ('first.gif', 'first.svg', 'both.svg', 'report.html'):
        assert (tmp_path / name).stat().st_size > 1_000


@pytest.mark.soak
def test_every_command_of_readme_in_an_empty_folder(tmp_path: Path) -> None:
    """Runs the indented blocks of the page in order, with the zoo of this checkout; trainings get few env steps."""
    for module in ('matplotlib', 'imageio_ffmpeg', 'onnxscript', 'onnxruntime', 'optuna', 'mujoco'):
        pytest.importorskip(module)
    few = {'torchrun': 4_096, 'halfcheetah_ppo': 4_096, 'pendulum': 12_288, 'pendulum_ppo': 8_192}  # a rollout or two
    environ = {'PYTHONPATH': str(ROOT), 'XDG_STATE_HOME': str(tmp_path / 'state')}
    install, *lines = re.findall(r'^    ((?:zoo|pip|torchrun) .*)$', README, re.MULTILINE)
    assert install == 'pip install .' and len(lines) >= 16
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == 'torchrun' or words[1] in ('train', 'sweep'):
            words.append(f'max_env_step={next((few[word] for word in words if word in few), 2_048)}')
        if words[0] == 'torchrun':
            command, env = [*TORCHRUN, *words[1:]], {**os.environ, **environ}
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
        else:
            done = run_python('-P', '-m', *words, cwd=tmp_path, **environ)
        assert done.returncode == 0, f'{line}\n{done.stderr}'
    assert {path.name for path in (tmp_path / 'runs').iterdir()} == {
        'cartpole_ppo',
        'halfcheetah_ppo',
        'cartpole_ppo_sweep',
    }
    written = {
        'curve.svg',
        'report.html',
        'agent.mp4',
        'agent.onnx',
        'agent.onnx.md',
    }  # and no file of a simulator's warnings
    assert {path.name for path in tmp_path.iterdir()} == {'my_env.py', 'mine', 'pendulum', 'runs', 'state', *written}
    assert all((tmp_path / name).stat().st_size > 1_000 for name in written)


@pytest.mark.long
def test_site_builds_without_a_warning_and_has_every_key(tmp_path: Path) -> None:
    words = [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', str(tmp_path / 'site')]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    keys = (
        (tmp_path / 'site' / 'reference' / 'config_keys.html').read_text().replace('<wbr>', '')
    )  # <wbr>: a long name may break here
    for row in explain_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo'}}):
        assert row.key in keys
    api = (tmp_path / 'site' / 'reference' / 'api_zoo.html').read_text()
    assert 'serial_pipeline' in api and 'max_train_iter' in api
    gallery = (tmp_path / 'site' / 'reference' / 'bundled_configs.html').read_text()
    assert gallery.count('class="card"') == gallery.count('src="../images/frames/') == len(bundled_configs())
    for extra, n in {'box2d': 5, 'mujoco': 8, 'atari': 6, 'envpool': 5, 'procgen': 2}.items():
        assert gallery.count(f'; extra {extra}</span>') == n
    lander = (tmp_path / 'site' / 'configs' / 'lunarlander_ppg.html').read_text()
    assert '<svg role="img"' in lander and 'var(--line-0)' in lander
    assert 'zoo train lunarlander_ppg' in lander and 'Return 2' in lander
    for page in (tmp_path / 'site').rglob('*.html'):  # 404.html is of the theme
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\ssrc="((?:https?:)?//[^"]*)"', page.read_text())
        assert loaded == [] and 'unpkg.com' not in page.read_text(), page
    readme = tmp_path / 'site' / 'files' / 'index.html'  # mkdocs names a README so
    pictures = re.findall(r'(?:src|srcset)="([^"#?]+\.(?:gif|png|svg))"', readme.read_text())
    assert len(pictures) == 3 and all((readme.parent / name).is_file() for name in pictures)
    notebook = (tmp_path / 'site' / 'files' / 'examples' / 'notebooks' / 'own_policy.ipynb.html').read_text()
    assert 'cell_type' not in notebook and 'end_penalty' in notebook
    home = (tmp_path / 'site' / 'index.html').read_text()
    assert 'zoo train my_env.py:MyEnv' in home and 'it ended early' in home and 'src="images/lander.svg"' in home
    assert _found(tmp_path / 'site' / 'index.html', 'clip_ratio') >= 5


def _found(page: Path, word: str) -> int:
    """The number of pages that the search box finds; the page is opened as a file, without a server."""
    api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
    path = shutil.which('chromium') or shutil.which('google-chrome')
    if path is None:
        pytest.skip('no browser is installed; apt-get install chromium')
    with (
        api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=['--no-sandbox']) as browser,
    ):
        opened = browser.new_page(viewport={'width': 1400, 'height': 900})
        opened.goto(page.as_uri())
        opened.locator('.md-search__input').click()
        opened.locator('.md-search__input').press_sequentially(word)
        said = opened.locator('.md-search-result__meta', has_text='matching').inner_text()
    return int(said.split()[0])


# --- README and the pages: their code, links and names of files

TEXTS = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'CHANGELOG.md', *sorted((ROOT / 'docs').glob('*.md'))]
README = (ROOT / 'README.md').read_text()
EXAMPLES = {path.name: path.read_text() for path in sorted((ROOT / 'examples').glob('*.py'))}
pages = pytest.mark.parametrize('page', TEXTS, ids=lambda page: page.name)


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


def test_yaml_of_the_page_on_agents_is_the_config_of_the_example() -> None:
    (block,) = re.findall(r'```yaml\n(.*?)```', (ROOT / 'docs' / 'agents.md').read_text(), re.DOTALL)
    (program,) = (block for block in code_blocks(ROOT / 'docs' / 'agents.md') if "exp_name='chase'," in block)
    config: dict[str, Any] = {}
    exec(program, config)
    assert yaml.safe_load(block) == config['config']


def indented_programs(page: Path) -> list[str]:
    """The blocks of a page that are indented, not fenced, and begin with an import."""
    blocks = re.findall(r'(?:^    .*\n)+', prose(page), re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks if re.match(r'    (?:from|import) \w', block)]


@pages
def test_page_without_fences_has_no_program_that_no_test_runs(page: Path) -> None:
    assert page.name == 'tutorial.md' or indented_programs(page) == []


def output_of(code: str, tail: str, folder: Path) -> Any:
    """Imports code as a module `page`, and runs further lines; returns what they print, as JSON."""
    (folder / 'page.py').write_text(code)
    (folder / 'run.py').write_text(f'import json\n\nimport page\nfrom zoo import serial_pipeline\n\n{tail}')
    done = run_python(folder / 'run.py', cwd=folder, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRAIN_POLICIES = """
found = {}
for name in ('my_ppo', 'limited_ppo', 'my_pg'):
    policy = dict(type=name, collect=dict(n_step=64), learn=dict(batch_size=64))
    logger = dict(console='off', tensorboard=False, freq=1)
    config = dict(max_env_step=512, env=dict(id='CartPole-v1', collector_env_num=4), policy=policy, logger=logger)
    result = serial_pipeline(config, run_dir=name)
    lines = [json.loads(line) for line in open(f'{name}/metrics.jsonl')]
    missing = set(result.policy.learn_mode.monitor_vars()) - {key.partition('/')[2] for line in lines for key in line}
    found[name] = [result.train_iter, sorted(missing)]
print(json.dumps(found))
"""


@pytest.mark.long
def test_policies_of_their_page_train_and_have_the_metrics_that_they_name(tmp_path: Path) -> None:
    code = '\n\n'.join(code_blocks(DOCS / 'your_policy.md'))
    found = output_of(code, TRAIN_POLICIES, tmp_path)
    # 2 rollouts of 4 * 64 rows, in minibatches of 64: 4 gradient steps a pass, and PPO makes 4 passes
    assert found == {'my_ppo': [32, []], 'limited_ppo': [32, []], 'my_pg': [32, []]}


@pytest.mark.long
def test_python_code_of_the_tutorial_trains_and_acts(tmp_path: Path) -> None:
    surrogate, program = code_blocks(DOCS / 'tutorial.md'), indented_programs(DOCS / 'tutorial.md')
    assert len(surrogate) == len(program) == 1
    logger = "page.config['logger'] = dict(console='off', tensorboard=False)"
    train = "serial_pipeline({**page.config, 'max_env_step': 2_048}, run_dir='first')"
    assert output_of(surrogate[0], f'{logger}\n{train}\n{program[0]}\nprint(int(action))', tmp_path) in (0, 1)


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


def test_home_of_the_site_shows_the_run_and_the_commands_of_readme() -> None:
    def shown(page: Path) -> set[tuple[str, ...]]:
        lines = re.findall(r'^    (.+)$', page.read_text(), re.MULTILINE)
        return {tuple(shlex.split(line, comments=True)) for line in lines if "'" not in line or line.startswith('zoo')}

    home = shown(DOCS / 'index.md')
    assert len(home) >= 9 and home <= shown(ROOT / 'README.md')


def test_speed_page_says_from_which_length_on_runs_are_compiled() -> None:
    assert f'{WORTH_STEPS:,} gradient steps' in (ROOT / 'docs' / 'speed.md').read_text()


@pytest.mark.parametrize('page', ['SECURITY.md', 'tests/promises.md'])
def test_tests_behind_the_promises_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    rows = re.search(r'^\| promise \| test \|\n\|---\|---\|\n((?:\|.*\n)+)', text, re.MULTILINE)[1].splitlines()
    named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', text)
    assert len(named) > 10 and all(re.search(r'`tests/[\w/]+\.py::\w+`', row) for row in rows)
    assert [name for file, name in named if f'\ndef {name}(' not in (ROOT / file).read_text()] == []


def test_citation_is_of_this_version_and_licence() -> None:
    from zoo import __version__

    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['version'] == __version__ and citation['license'] == 'Apache-2.0'


def test_page_of_capabilities_names_tests_that_exist() -> None:
    page = (ROOT / 'benchmarks' / 'results' / 'capabilities.md').read_text()
    named = set(re.findall(r'`(test_\w+)`', page))
    code = '\n'.join(path.read_text() for path in (ROOT / 'tests').rglob('test_*.py'))
    assert len(named) > 15 and not [name for name in named if f'def {name}(' not in code]
