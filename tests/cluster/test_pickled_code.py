"""Code that runners need reaches another process: code of the script by value, files as source text."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from zoo.cluster.pickled_code import RunnerPayload, check_versions, packed, unpacked, versions
from zoo.config.source import import_module_or_file
from zoo.core.errors import UserError
from zoo.core.registry import ENCODER_REGISTRY, MODEL_REGISTRY

LOAD = 'import sys; from zoo.cluster.pickled_code import unpacked; found = unpacked(open(sys.argv[1], "rb").read(), "node7"); '


def run(folder: Path, *args: str) -> str:
    done = subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_versions_that_differ_are_named_with_both() -> None:
    check_versions(versions(), 'node7')
    with pytest.raises(
        UserError, match='the runner on node7 has torch .* and the learner 1.0; install the same on both'
    ):
        check_versions({**versions(), 'torch': '1.0'}, 'node7')


@pytest.mark.long
def test_what_a_script_defines_is_there_in_another_process(tmp_path: Path) -> None:
    (tmp_path / 'script.py').write_text(
        textwrap.dedent("""
        import gymnasium
        from pydantic import Field
        import zoo
        from zoo.cluster.pickled_code import RunnerPayload, packed
        from zoo.core.registry import POLICY_REGISTRY
        from zoo.policy.ppo import PPOPolicy

        class Mine(gymnasium.Env):
            def __init__(self):
                self.answer = 41

        class Other(Mine):
            pass

        class Config(PPOPolicy.config):
            bonus: float = Field(2.0, description='x')

        @POLICY_REGISTRY.register('my_ppo')
        class MyPPO(PPOPolicy):
            config = Config

            def names(self):
                return 'my_ppo' in POLICY_REGISTRY

        gymnasium.register('Mine-v0', entry_point=Mine)
        gymnasium.register('Other-v0', entry_point='__main__:Other')
        PPOPolicy.with_updates('calm_ppo', {'learn': {'clip_ratio': 0.1}})
        open('payload', 'wb').write(packed(RunnerPayload({'class': MyPPO}, {'id': 'Mine-v0'}, None)))
        """)
    )
    run(tmp_path, 'script.py')
    words = (
        LOAD + 'import gymnasium; from zoo.core.registry import POLICY_REGISTRY as r; mine = r.get("my_ppo"); '
        'print(gymnasium.make("Mine-v0", disable_env_checker=True).unwrapped.answer, '
        'gymnasium.make("Other-v0", disable_env_checker=True).unwrapped.answer, mine is found.policies["class"], '
        'mine.config().bonus, mine.names(None), r.get("calm_ppo").config().learn.clip_ratio)'
    )
    assert run(tmp_path, '-c', words, 'payload') == '41 41 True 2.0 True 0.1'


@pytest.mark.long
def test_a_file_is_sent_by_its_source_and_named_by_its_module(tmp_path: Path) -> None:
    own = tmp_path / 'own'
    own.mkdir()
    (own / 'my_file.py').write_text(
        textwrap.dedent("""
        import gymnasium
        from zoo.core.registry import MODEL_REGISTRY

        class Mine(gymnasium.Env):
            answer = 42

        @MODEL_REGISTRY.register('my_model')
        class Model:
            pass
        """)
    )
    (tmp_path / 'script.py').write_text(
        textwrap.dedent("""
        from zoo.cluster.pickled_code import RunnerPayload, packed
        from zoo.config.source import import_module_or_file
        name = import_module_or_file('own/my_file.py').__name__
        open('payload', 'wb').write(packed(RunnerPayload({'model': 'my_model'}, {'id': 'own/my_file.py:Mine'}, None)))
        """)
    )
    run(tmp_path, 'script.py')
    (own / 'my_file.py').unlink()  # as on another machine
    words = (
        LOAD + 'from zoo.config.user_code import load_code; from zoo.core.registry import MODEL_REGISTRY as r; '
        'print(found.env["id"], load_code(found.env["id"], "env.id").answer, r.get("my_model").__module__)'
    )
    assert run(tmp_path, '-c', words, 'payload') == 'my_file:Mine 42 my_file'


def test_a_file_of_another_run_may_be_gone(tmp_path: Path) -> None:
    file = tmp_path / 'gone_config.py'
    file.write_text('x = 1')
    name = import_module_or_file(str(file)).__name__
    assert name.encode() in packed(RunnerPayload({}, {'id': 'CartPole-v1'}, None))
    file.unlink()
    payload = RunnerPayload({}, {'id': 'CartPole-v1'}, None)
    assert name.encode() not in packed(payload) and unpacked(packed(payload), 'here') == payload


@pytest.mark.long
def test_a_module_that_a_runner_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / 'helper.py').write_text('class Thing:\n    pass\n')
    (tmp_path / 'script.py').write_text(
        'import helper\nfrom zoo.cluster.pickled_code import RunnerPayload, packed\n'
        "open('payload', 'wb').write(packed(RunnerPayload({'class': helper.Thing}, {'id': 'CartPole-v1'}, None)))\n"
    )
    run(tmp_path, 'script.py')
    (tmp_path / 'helper.py').unlink()
    words = f'try:\n    {LOAD}\nexcept ValueError as error:\n    print(type(error).__name__, error)'
    said = run(tmp_path, '-c', words, 'payload')
    assert said.startswith(
        "UserError the runner on node7 cannot import what the run uses (ModuleNotFoundError: No module named 'helper'"
    )
    assert '--import path/file.py' in said and 'cluster.working_dir' in said


def test_what_cannot_be_sent_is_refused_if_the_run_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r'the config, or the policy cannot be sent to a runner \(TypeError: cannot pickle'
    ):
        packed(RunnerPayload({'model': threading.Lock()}, {'id': 'CartPole-v1'}, None))
    monkeypatch.setattr(MODEL_REGISTRY, 'entries', {**MODEL_REGISTRY.entries, 'locked': threading.Lock()})
    monkeypatch.setattr(MODEL_REGISTRY, 'places', {**MODEL_REGISTRY.places, 'locked': 'my_script:3'})
    data = packed(RunnerPayload({'cfg': {'model': {'type': 'mlp'}}}, {'id': 'CartPole-v1'}, None))
    assert unpacked(data, 'here').env == {'id': 'CartPole-v1'}
    with pytest.raises(UserError, match="model 'locked', registered at my_script:3, cannot be sent to a runner"):
        packed(RunnerPayload({'cfg': {'model': {'type': 'locked'}}}, {'id': 'CartPole-v1'}, None))
    assert 'locked' not in ENCODER_REGISTRY
