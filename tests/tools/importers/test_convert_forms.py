"""Configs in the forms that other libraries' own ones have: how many convert, and why the others do not."""

from __future__ import annotations

import pytest
import yaml

from tests.tools.importers import forms
from zoo.config.section import ConfigError
from zoo.run.config import resolve_config
from zoo.tools.importers import convert

NEEDS = ('which is not found', 'env.game is missing', 'env.id is missing', "unknown update option 'rpo'")
"""Parts of sentences that say what a user must add to a translated config: a package, a game, an env, a file."""


def lacks(config):
    """The problems of a translated config that are not in NEEDS."""
    try:
        resolve_config(config)
    except ConfigError as error:
        return [problem for problem in error.problems if not any(words in problem for words in NEEDS)]
    return []


def refused_for(reason, config, **kwargs):
    """Whether a config is refused in one sentence that has the reason."""
    with pytest.raises(ConfigError) as caught:
        convert(config, **kwargs)
    return reason in str(caught.value) and len(caught.value.problems) == 1


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_forms_of_di_engine_convert_or_are_refused_for_their_reason():
    problems = {name: lacks(convert(pair).config) for name, pair in forms.DI_ENGINE.items()}
    assert not any(problems.values()), problems
    refused = [name for name, (pair, reason) in forms.DI_ENGINE_REFUSED.items() if refused_for(reason, pair)]
    assert refused == list(forms.DI_ENGINE_REFUSED)
    print(f'DI-engine: {len(problems)} of {len(problems) + len(refused)} forms convert, the others have a reason')
    assert (len(problems), len(refused)) == (11, 11)


def test_forms_of_cleanrl_convert_or_are_refused_for_their_reason(tmp_path):
    scripts = {name: written(tmp_path, f'{name}.py', code) for name, code in forms.CLEANRL.items()}
    problems = {name: lacks(convert(path).config) for name, path in scripts.items()}
    assert not any(problems.values()), problems
    refused = [
        name
        for name, (code, reason) in forms.CLEANRL_REFUSED.items()
        if refused_for(reason, written(tmp_path, f'{name}.py', code))
    ]
    assert refused == list(forms.CLEANRL_REFUSED)
    print(f'CleanRL: {len(problems)} of {len(problems) + len(refused)} forms convert, the others have a reason')
    assert (len(problems), len(refused)) == (11, 3)


@pytest.mark.parametrize(('file', 'n'), [('ppo', 7), ('ppo_lstm', 3), ('a2c', 3), ('trpo', 3)])
def test_forms_of_rl_zoo3_convert(file, n, tmp_path):
    path = written(tmp_path, f'{file}.yml', forms.RL_ZOO3[file])
    problems = {name: lacks(convert(path, name=name).config) for name in yaml.safe_load(path.read_text())}
    assert not any(problems.values()), problems
    print(f'rl-zoo3, {file}.yml: {len(problems)} of {len(problems)} forms convert')
    assert len(problems) == n
