"""Every file of examples/ runs; the DQN learns; a minimal policy runs, and an incomplete one is refused with its fault."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forked import run_python
from zoo import ENV_REGISTRY, POLICY_REGISTRY, load_policy, match, serial_pipeline
from zoo.core.errors import UserError
from zoo.policy import Policy, PolicyConfig
from zoo.run.checkpoint import consent
from zoo.run.checkpoint.file import load_checkpoint

EXAMPLES = Path(__file__).parents[1] / 'examples'
NOTEBOOK_RUNNER = Path(__file__).parents[1] / 'docs' / 'site' / 'notebooks.py'
QUIET = ['logger.console=off', 'logger.tensorboard=false']
SHORT = {  # max_env_step: one rollout or a few, enough for every kind of update
    **dict.fromkeys('my_env my_vector_env my_wrappers my_model my_masks memory my_memory my_surrogate'.split(), 2_048),
    **dict.fromkeys(
        'my_encoder my_advantage own_updates my_evaluation curriculum watch my_game my_cell'.split(), 2_048
    ),
    **dict.fromkeys(
        'my_gaussian device_env own_sink own_stop rpo pfo chain my_constraint levels my_symmetry my_entities'.split(),
        4_096,
    ),
    'dcpg': 24_576,
    'policy_gradient': 8_192,
    'quick_start': 2_048,
}
OWN = 'my_ppo dqn my_option random_policy own_stats own_gradients own_plan two_policies self_play runner_stats episode_so_far own_tensors'.split()  # each has a separate test
# they have no config
SCRIPTS = 'ask_policy imitate look_at_env my_loss own_weights ppo_in_one_page read_run sample_with_memory served_game try_device_env'.split()
WITH_FILE = ['run_onnx']  # it needs an exported policy: tests/tools/cli/test_export.py runs it
ON_RAY = ['sweep_on_ray']  # it starts Ray on this machine
WITH_JAX = ['jax_env']


def run(*args: str, cwd: Path) -> str:
    done = run_python(*args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def train(name: str, *args: str, cwd: Path) -> dict[str, Any]:
    result = json.loads(run('-m', 'zoo', 'train', str(EXAMPLES / f'{name}.py'), *QUIET, *args, '--json', cwd=cwd))
    return {**result, 'run_dir': str(cwd / result['run_dir'])}


def test_examples_are_all_run_here() -> None:
    notebooks = {path.stem for path in (EXAMPLES / 'notebooks').iterdir()}
    assert notebooks == {*NOTEBOOKS}  # by the test of their cells
    assert {path.stem for path in EXAMPLES.glob('*.py')} == {*SHORT, *OWN, *SCRIPTS, *WITH_FILE, *ON_RAY, *WITH_JAX}


@pytest.mark.soak
@pytest.mark.parametrize('name', SHORT)
def test_example_trains_by_its_file(name: str, tmp_path: Path) -> None:
    result = train(name, f'max_env_step={SHORT[name]}', 'policy.eval.n_episode=1', cwd=tmp_path)
    assert result['train_iter'] > 0
    assert list(Path(result['run_dir']).glob('checkpoints/step_*.safetensors'))


@pytest.mark.soak
def test_jax_env_walks_to_the_end(tmp_path: Path) -> None:
    pytest.importorskip('jax')
    # 12 places against a wind that is 1 in 10: from a start in 0..5 about 12 steps, 1 - .01 * 12
    assert train('jax_env', cwd=tmp_path)['last_return'] > 0.8


@pytest.mark.parametrize('name', [*SHORT, *OWN, *WITH_JAX])
def test_example_run_as_a_script_trains_its_config(name: str) -> None:
    main = ast.parse((EXAMPLES / f'{name}.py').read_text()).body[-1]
    assert isinstance(main, ast.If) and ast.unparse(main.test) == "__name__ == '__main__'"
    assert 'serial_pipeline(config)' in ast.unparse(main.body[0])


@pytest.mark.soak
@pytest.mark.parametrize('name', [*SCRIPTS, 'quick_start', 'watch'])
def test_example_runs_as_a_script(name: str, tmp_path: Path) -> None:
    file = EXAMPLES / f'{name}.py'
    output = run(str(file), cwd=tmp_path)  # exits with 0: its own asserts hold
    assert bool(output.strip()) == ('print(' in file.read_text())


@pytest.mark.soak
def test_my_encoder_learns_from_the_image_and_the_vector(tmp_path: Path) -> None:
    # 16 steps: by chance 1 of 4 is right, 4; with the image alone 1 of 2, since the vector's sign decides: 8
    assert train('my_encoder', cwd=tmp_path)['last_return'] > 10


def test_ppo_in_one_page_has_the_parameters_of_zoo_after_three_rollouts(tmp_path: Path) -> None:
    page = runpy.run_path(str(EXAMPLES / 'ppo_in_one_page.py'))
    n_step = 3 * page['N_STEP'] * page['N_ENV']
    overrides = ['env.vectorization=sync', 'policy.learn.executor=eager', f'policy.eval.eval_freq={n_step}']
    for name in ('learning_rate', 'clip_ratio'):  # over the whole run, which ends after three rollouts here
        overrides.append(f'policy.learn.{name}.over={page["MAX_ENV_STEP"]}')
    overrides += [*QUIET, f'logger.root={tmp_path}', 'policy.eval.n_episode=1', 'policy.eval.stop_value=null']
    result = serial_pipeline('cartpole_ppo', seed=5, overrides=overrides, max_env_step=n_step)
    network = load_policy(result.run_dir).model
    model, _ = page['train'](seed=5, n_rollout=3)
    assert result.train_iter == 3 * 40  # 10 passes of 4 minibatches
    pairs = list(zip(network.parameters(), model.parameters(), strict=True))
    assert len(pairs) == 12
    for ours, of_page in pairs:
        assert torch.equal(ours, of_page)


@pytest.mark.soak
@pytest.mark.parametrize('seed', [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_ppo_in_one_page_solves_cartpole(seed: int) -> None:
    page = runpy.run_path(str(EXAMPLES / 'ppo_in_one_page.py'))
    _, n_end = page['train'](seed)
    # every step has the reward 1: 20.5 ends of episodes of 500 steps each in 10 rollouts, and a reserve of one or two
    assert sum(n_end[-10:]) <= 22


@pytest.mark.long
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_quick_start_solves_cartpole_with_any_seed(seed: int, tmp_path: Path) -> None:
    # CartPole counts as solved at a mean return of 475 of 500
    assert train('quick_start', f'seed={seed}', cwd=tmp_path)['last_return'] >= 475


NOTEBOOKS = {  # the kinds of output of each cell that shows something
    'first_run': [{'html', 'plain'}, {'text'}, {'plain'}, {'svg+xml', 'plain'}, {'plain'}],
    'own_policy': [{'plain'}],
}


def outputs_of(notebook: dict[str, Any]) -> list[dict[str, str]]:
    """What the cells show, by its kind: 'plain', 'html', 'svg+xml', or 'text' for what a cell prints."""
    shown = []
    for cell in notebook['cells']:
        for output in cell.get('outputs', []):
            data = output.get('data', {'text/text': output.get('text', '')})
            shown.append({kind.split('/')[1]: ''.join(text) for kind, text in data.items()})
    return shown


def check_first_run(shown: list[dict[str, str]]) -> None:
    result, returns, metrics, figure, action = shown
    assert result['html'].count('<svg') == figure['svg+xml'].count('<svg') == 1
    values = [float(line.split()[-1]) for line in returns['text'].splitlines()]
    assert len(values) >= 3 and values[-1] >= 475  # it ends when CartPole is solved
    numbers = ast.literal_eval(metrics['plain'])  # NaN would be no literal
    # a policy over two actions has the entropy log(2) = 0.693 at most, and has learnt something below it
    assert len(numbers) >= 10 and 0.1 < numbers['learn/entropy'] < 0.68
    assert action['plain'] == '1'


def check_own_policy(shown: list[dict[str, str]]) -> None:
    returns = ast.literal_eval(shown[0]['plain'])
    assert len(returns) == 2 and returns[0.0] != returns[5.0] and min(map(max, returns.values())) > 100


@pytest.mark.parametrize('name', NOTEBOOKS)
def test_notebook_is_stored_with_true_outputs(name: str) -> None:
    text = (EXAMPLES / 'notebooks' / f'{name}.ipynb').read_text()
    shown = outputs_of(json.loads(text))
    assert [set(each) for each in shown] == NOTEBOOKS[name]
    assert (
        '/tmp' not in text
        and '/home' not in text
        and 'nan' not in ''.join(each['plain'] for each in shown if 'plain' in each)
    )
    {'first_run': check_first_run, 'own_policy': check_own_policy}[name](shown)


@pytest.mark.soak
@pytest.mark.parametrize('name', NOTEBOOKS)
def test_notebook_shows_numbers_and_pictures_where_it_is_run(name: str) -> None:
    pytest.importorskip('matplotlib')
    pytest.importorskip('nbclient')
    pytest.importorskip('ipykernel')
    shown = outputs_of(runpy.run_path(str(NOTEBOOK_RUNNER))['executed'](EXAMPLES / 'notebooks' / f'{name}.ipynb'))
    assert [set(each) for each in shown] == NOTEBOOKS[name]
    {'first_run': check_first_run, 'own_policy': check_own_policy}[name](shown)


@pytest.mark.soak
def test_sweep_on_ray_does_its_trials(tmp_path: Path) -> None:
    pytest.importorskip('ray')
    pytest.importorskip('optuna')
    short = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false']
    assert 'of 4 has the best return' in run(str(EXAMPLES / 'sweep_on_ray.py'), *short, cwd=tmp_path)
    assert len(list((tmp_path / 'runs').glob('trial_*'))) == 4


@pytest.mark.long
def test_my_ppo_takes_its_own_key_from_the_command_line(tmp_path: Path) -> None:
    result = train('my_ppo', 'policy.learn.end_penalty=2', 'max_env_step=1_024', cwd=tmp_path)
    config = (Path(result['run_dir']) / 'config.yaml').read_text()
    assert 'type: my_ppo' in config and 'end_penalty: 2' in config


def test_dqn_has_at_most_80_lines_of_code_and_imports_public_names_only() -> None:
    text = (EXAMPLES / 'dqn.py').read_text()
    tree = ast.parse(text)
    assert sum(bool(line.strip()) for line in text.splitlines()[tree.body[0].end_lineno or 0 :]) <= 80
    modules = {node.module for node in ast.walk(tree) if hasattr(node, 'module')}
    assert modules <= {'pydantic', 'zoo', 'zoo.config.schedule', 'zoo.policy', 'zoo.rl_utils'}


@pytest.mark.soak
def test_dqn_solves_cartpole_in_40_000_env_steps(tmp_path: Path) -> None:
    result = train('dqn', 'seed=1', cwd=tmp_path)
    assert result['last_return'] >= 475 and result['env_step'] <= 40_000


@pytest.mark.soak
def test_dqn_resumed_run_continues_target_network_and_exploration(tmp_path: Path) -> None:
    first = train('dqn', 'max_env_step=1_000', 'policy.eval.stop_value=null', cwd=tmp_path)
    own = ['--import', str(EXAMPLES / 'dqn.py')]
    text = run('-m', 'zoo', 'train', '--resume', first['run_dir'], 'max_env_step=2_000', *own, '--json', cwd=tmp_path)
    second = json.loads(text)
    assert second['run_dir'] == first['run_dir'] and first['train_iter'] < second['train_iter']
    evaluated = json.loads(run('-m', 'zoo', 'eval', first['run_dir'], *own, '--json', cwd=tmp_path))
    assert evaluated['env_step'] == second['env_step']


def lines_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(result['run_dir']) / 'metrics.jsonl').read_text().splitlines()]


@pytest.mark.long
def test_two_policies_learn_and_a_hare_that_stands_still_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    own: tuple[tuple[dict[str, Any], str], ...] = (
        (ENV_REGISTRY.entries, 'chase'),
        (ENV_REGISTRY.places, 'chase'),
        (sys.modules, 'two_policies'),
    )
    for names, name in own:  # all are gone after the test: later ones would send what is registered to other machines
        monkeypatch.setitem(names, name, None)
        monkeypatch.delitem(names, name)
    monkeypatch.setattr(consent, 'given', set(consent.given))  # else later commands would name its module
    monkeypatch.setattr(consent, 'given_elsewhere', set(consent.given_elsewhere))
    import two_policies  # the function of its policy is found by the name of its module

    logger = {'console': 'off', 'tensorboard': False, 'root': str(tmp_path)}
    result = serial_pipeline({**two_policies.config, 'logger': logger}, max_env_step=2_048)
    assert {name: policy.cfg.type for name, policy in result.policies.items()} == {'hunter': 'ppo', 'hare': 'a2c'}
    returns = two_policies.returns_of(result.run_dir)
    assert returns['hunter'] == -returns['hare']
    caught = serial_pipeline({**two_policies.against_still_hares, 'logger': logger}, max_env_step=40_000)
    assert caught.last_return == 1.0


@pytest.mark.long
def test_self_play_in_kuhn_poker_has_standings_and_a_loss_of_its_average(tmp_path: Path) -> None:
    pytest.importorskip('pyspiel', reason='OpenSpiel')
    page = runpy.run_path(str(EXAMPLES / 'self_play.py'))
    logger = {'console': 'off', 'tensorboard': False, 'root': str(tmp_path)}
    result = serial_pipeline({**page['config'], 'logger': logger}, max_env_step=8_192)
    run_dir = str(result.run_dir)
    found = page['standings'](run_dir)
    assert (list(found), found['random']) == ([run_dir, f'{run_dir}@0', 'random', 'careful'], 1000.0)
    assert 0.0 < page['loss_of_average'](run_dir) < 0.4583  # that of uniform play
    bot = match(page['careful'], 'random', env='pyspiel:kuhn_poker', n_episode=2_000)
    # by hand, with king, queen, jack: as first player 1.5, -.5, -1; as second one 1.75, -.5, -1; all cards and seats: 1/24
    assert bot.pairings[0].return_mean == pytest.approx(1 / 24, abs=0.1)  # 2,000 games: three standard errors of .03


def test_random_policy_has_the_return_of_random_actions(tmp_path: Path) -> None:
    # with random actions an episode of CartPole lasts 22 steps (standard deviation 12); the mean of 200 is 22 +- 0.9
    assert train('random_policy', cwd=tmp_path)['last_return'] == pytest.approx(22, abs=5)


def test_own_tensors_reach_runners(tmp_path: Path) -> None:
    result = train('own_tensors', 'cluster.engine=inline', cwd=tmp_path)
    rows = [line for line in lines_of(result) if 'learn/p_of_action' in line]
    # the learner finds the best of the actions; the runners draw it only if they get its logits. 8 steps, 1 each
    assert result['last_return'] == 8.0 and rows[-1]['learn/p_of_action'] > 0.9 and rows[-1]['collect/return_mean'] > 6


def test_policy_with_a_state_of_its_own_knows_the_episode_so_far(tmp_path: Path) -> None:
    result = train('episode_so_far', cwd=tmp_path)
    assert result['last_return'] == 1.0  # without memory 1 / 3
    rows = [line for line in lines_of(result) if 'collect/return_mean' in line]
    assert rows[-1]['collect/return_mean'] == 1.0  # also in training, where episodes begin within rollouts


@pytest.mark.long
def test_own_stats_are_in_the_log_and_stop_the_run(tmp_path: Path) -> None:
    result = train('own_stats', cwd=tmp_path)
    rows = [line for line in lines_of(result) if 'learn/policy_loss' in line]
    assert all(row['learn/reward_min'] >= 0 and row['learn/reward_max'] == 1 for row in rows)
    assert all(row['learn/adv_abs_max'] > 0 and row['learn/episode_end'] >= 0 for row in rows)
    assert result['last_return'] >= 400 and result['env_step'] < 30_000  # the example's own rule stopped it


@pytest.mark.soak
def test_runner_stats_are_those_of_two_processes(tmp_path: Path) -> None:
    lines = [
        line for line in lines_of(train('runner_stats', 'max_env_step=8_192', cwd=tmp_path)) if 'cart/fall' in line
    ]
    falls = [line['cart/fall'] for line in lines]
    assert (
        lines[0]['cluster/runner'] == 2 and falls == sorted(falls) and falls[-1] > 20
    )  # random play falls every 22 steps
    assert all(
        line['cart/position_min'] < 0 < line['cart/position_max'] and 0 <= line['cart/far'] < 1 for line in lines
    )


@pytest.mark.long
def test_own_gradients_are_limited_and_learn(tmp_path: Path) -> None:
    result = train('own_gradients', cwd=tmp_path)
    shares = [line['learn/limited_share'] for line in lines_of(result) if 'learn/limited_share' in line]
    assert shares and all(0 < share < 10 for share in shares)  # 10 tensors a step
    assert result['best_return'] >= 195


@pytest.mark.long
def test_own_plan_collects_four_rollouts_for_each_round_of_updates(tmp_path: Path) -> None:
    result = train('own_plan', 'max_env_step=2_048', 'logger.freq=1', cwd=tmp_path)
    # 2048 = 4 rollouts of 64 x 8, each in 512 / 256 minibatches x 4 epochs: one round of 32 steps
    assert result['train_iter'] == 32 and 1_792 < result['env_step'] <= 2_048
    assert [line['collect/iter'] for line in lines_of(result) if 'learn/train_iter' in line] == [4]


@pytest.mark.soak
@pytest.mark.parametrize('name', ['own_stats', 'own_gradients', 'own_plan'])
def test_run_of_own_code_is_resumed_with_consent_to_its_module(name: str, tmp_path: Path) -> None:
    first = train(name, 'max_env_step=2_048', cwd=tmp_path)
    more = ['--import', str(EXAMPLES / f'{name}.py'), 'max_env_step=4_096', 'logger.console=off', '--json']
    second = json.loads(run('-m', 'zoo', 'train', '--resume', first['run_dir'], *more, cwd=tmp_path))
    assert second['env_step'] > first['env_step']


@pytest.mark.long
def test_my_option_refuses_another_rule_for_rewards_has_its_key_and_metric_and_its_state_is_resumed(
    tmp_path: Path,
) -> None:
    words = ['-m', 'zoo', 'train', str(EXAMPLES / 'my_option.py'), *QUIET, 'policy.learn.reward_norm=true']
    done = run_python(*words, cwd=tmp_path)
    refusal = "option 'centering' and policy.learn.reward_norm both say how rewards count"
    assert done.returncode != 0 and refusal in done.stderr
    own = ['--import', str(EXAMPLES / 'my_option.py'), '--json']
    short = ['policy.learn.options=[{type: centering, rate: 1.0}]', 'policy.collect.n_step=64', 'logger.freq=1']
    first = train('my_option', *short, 'max_env_step=1_536', cwd=tmp_path)
    run('-m', 'zoo', 'train', '--resume', first['run_dir'], 'max_env_step=2_048', *own, cwd=tmp_path)
    means = [line['learn/reward_mean'] for line in lines_of(first) if 'learn/reward_mean' in line]
    path = Path(first['run_dir']) / 'checkpoints' / 'step_000002048.safetensors'
    state = load_checkpoint(path).state['policy']['learn']['centering']
    # rollouts of 8 x 64 steps: 3, and 1 after the resume; with a rate of 1 the mean is that of the newest rollout
    assert len(means) == state['n_rollout'] == 4 and means[-1] == pytest.approx(state['mean'].item())
    assert len(set(means)) == 4 and all(-16.3 < mean < 0 for mean in means)  # rewards of Pendulum are in [-16.3, 0]


class RandomPolicy(Policy):
    """Acts at random and learns nothing; has every abstract method and no config section of its own."""

    @classmethod
    def default_model(cls) -> str | None:
        return None

    def _init_learn(self) -> None:
        self._n_batch = 0

    def _forward_learn(self, batch: Any) -> Any:
        self._n_batch += 1
        return {'reward': batch['reward'].mean()}

    def _monitor_vars_learn(self) -> list[str]:
        return ['reward']

    def _get_train_iter(self) -> int:
        return self._n_batch

    def _init_collect(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def _forward_collect(self, obs: Any, state: Any = None) -> dict[str, Any]:
        return {'action': torch.randint(2, (len(obs),), generator=self._generator)}

    def _process_transition(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        return {'obs': obs, 'reward': timestep.reward}

    def _get_train_sample(self, rollout: Any) -> Any:
        return {name: x.flatten(0, 1) for name, x in rollout.data.items()}

    def _forward_eval(self, obs: Any, state: Any = None) -> dict[str, Any]:
        return {'action': torch.zeros(len(obs), dtype=torch.int64)}


def bare_config(folder: Path, **policy: Any) -> dict[str, Any]:
    return dict(
        max_env_step=256,
        env=dict(id='CartPole-v1', collector_env_num=4),
        policy=dict(type='bare_test', eval=dict(n_episode=2), **policy),
        logger=dict(root=str(folder), console='off', tensorboard=False),
    )


@pytest.mark.parametrize('buffer', ['rollout', 'replay'])
def test_policy_on_the_base_sections_without_a_network_runs(buffer: str, tmp_path: Path) -> None:
    POLICY_REGISTRY.register('bare_test', force=True)(RandomPolicy)
    config = bare_config(tmp_path, learn=dict(batch_size=64), collect=dict(n_step=16))
    config['buffer'] = {'type': buffer, **({'n_sample': 64} if buffer == 'replay' else {})}
    result = serial_pipeline(config)
    assert result.env_step > 192 and result.train_iter == 4  # a batch for each of the 4 rollouts of 16 x 4 steps
    assert result.last_return is not None and 8 <= result.last_return <= 11  # always left: the pole falls soon
    resumed = serial_pipeline(resume=result.run_dir, max_env_step=512)
    assert resumed.run_dir == result.run_dir and resumed.env_step > result.env_step
    assert load_policy(result.run_dir).act([0.0, 0.0, 0.0, 0.0]) == 0


OWN_METHODS = '_forward_collect', '_get_train_sample'


@pytest.mark.parametrize(
    ('method', 'named'),
    [*zip(OWN_METHODS, OWN_METHODS, strict=True), ('default_model', 'default')],
)
def test_policy_that_lacks_a_method_is_refused_by_its_name(method: str, named: str, tmp_path: Path) -> None:
    own = [name for name in vars(RandomPolicy) if name != method and not name.startswith(('__', '_abc'))]
    parts = {name: vars(RandomPolicy)[name] for name in own}
    POLICY_REGISTRY.register('bare_test', force=True)(type('Unfinished', (Policy,), parts))
    with pytest.raises(UserError, match=named):
        serial_pipeline(bare_config(tmp_path, learn=dict(batch_size=64), collect=dict(n_step=16)))
    assert not list(tmp_path.iterdir())  # refused before anything is written


class Unnamed(RandomPolicy):
    config = PolicyConfig

    def _monitor_vars_learn(self) -> list[str]:
        return ['loss']


@pytest.mark.parametrize(
    ('policy', 'error', 'named'),
    [
        (type('NoSection', (RandomPolicy,), {'config': dict}), UserError, "'bare_test'.*config"),
        (Unnamed, ValueError, "'reward'.*_monitor_vars_learn names.*'loss'"),
    ],
)
def test_policy_whose_config_or_metrics_are_not_those_of_a_policy_is_refused_by_name(
    policy: type[Policy], error: type[Exception], named: str, tmp_path: Path
) -> None:
    POLICY_REGISTRY.register('bare_test', force=True)(policy)
    sections = {} if policy is not Unnamed else dict(learn=dict(batch_size=64), collect=dict(n_step=16))
    with pytest.raises(error, match=named):
        serial_pipeline(bare_config(tmp_path, **sections))
