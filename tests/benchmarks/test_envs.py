"""benchmarks/envs.py: its list of packages, and the page that it writes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import envs
import pytest
from envs import AT_ONCE, NOT_IMPORTED, STOPPED, Package


def test_packages_are_pinned_and_their_makers_exist() -> None:
    packages = envs.packages()
    assert len(packages) >= 40
    assert all(re.fullmatch(r'\d+(\.\d+)+', package.version) for package in packages)
    makers = [env.partition(':')[2] for package in packages for env in package.envs if envs.is_maker(env)]
    source = (envs.HERE / 'env_makers.py').read_text()
    assert makers == [name for name in makers if f'\ndef {name}() ->' in source] != []


def test_page_counts_the_packages_that_can_be_tried() -> None:
    """By hand: of three packages one cannot be imported, so two are judged, and one of these trains; before, none did."""

    def result(outcome: str, last: str = '') -> dict[str, object]:
        tried = outcome in (AT_ONCE, STOPPED)
        env = {'env': 'E-v0', 'outcome': outcome, 'last': last}
        return {
            'version': '1.0',
            'commit': 'def',
            'steps': 8,
            'outcome': outcome,
            'envs': [env] if tried else [],
            'last': last,
        }

    results = {'a': result(AT_ONCE), 'b': result(STOPPED, 'no | such id'), 'c': result(NOT_IMPORTED, 'ImportError: x')}
    before = {name: result(STOPPED) for name in results}
    about = {'when': 'today', 'machine': 'm', 'versions': 'v'}
    page = envs.page(results, before, about)
    assert '3 packages' in page
    assert '2 can be installed, imported and tried; of those, 1 train at once' in page
    assert 'With zoo before (def) it was 0.' in page
    assert 'commits def; N is 8.' in page
    assert '| b 1.0 | `E-v0` | stopped | stopped | no \\| such id |' in page
    assert '| c 1.0 |  | not importable | stopped | ImportError: x |' in page


@pytest.mark.long
def test_process_that_runs_too_long_is_stopped_with_what_it_has_started(tmp_path: Path) -> None:
    package = Package('p', '1.0', {}, [], False, {'WORD': 'given'}, {}, None)
    waits = 'import os, time; print(os.environ["WORD"], flush=True); time.sleep(60)'
    ended = envs.run([sys.executable, '-c', waits], package, envs.REPO, tmp_path, 1.0)
    assert (ended.at_limit, ended.returncode, ended.stdout) == (True, -9, 'given\n')


def test_last_sentence_is_the_last_line_without_colours() -> None:
    assert envs.last_sentence('first\n\x1b[31mzoo: error: no\x1b[0m\n\n') == 'zoo: error: no'
    assert envs.last_sentence('\n') == 'no output'
