"""Crafted checkpoints with a correct checksum: any bad content is refused in one sentence, and does no harm."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fuzz import run_fuzz
from tests.run.crafted import OLD, components_of, crafted, joined, with_value
from zoo import load_policy, serial_pipeline
from zoo.core.spaces import MultiBinary, MultiDiscrete
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint
from zoo.run.checkpoint.schema import check_config_size, saved_run, space_problem
from zoo.tools.cli import main

TENSOR = torch.ones(2)
LONG = 'x' * 5_000
META = [
    ('meta.config', None, 'config is None: it should be'),
    ('meta.config', [], 'config is []'),
    ('meta.config', ..., 'config is missing'),
    ('meta.config.env', None, 'config.env is None'),
    ('meta.config.env.id', 7, 'config.env.id is 7'),
    ('meta.config.env.id', ..., 'config.env.id is missing'),
    ('meta.config.env.action_mode', 'wild', "config.env.action_mode is 'wild'"),
    ('meta.config.policy', 'ppo', "config.policy is 'ppo'"),
    ('meta.config.policy.type', None, 'config.policy.type is None'),
    ('meta.config.policy.collect', 3, 'config.policy.collect is 3'),
    ('meta.config.seed', -1, 'config.seed is -1'),
    ('meta.config.seed', 'one', "config.seed is 'one'"),
    ('meta.config.max_env_step', ..., 'config.max_env_step is missing'),
    ('meta.config.logger', {}, 'config.logger.root is missing'),
    ('meta.config.exp_name', True, 'config.exp_name is True'),
    ('meta.config.policy.learn.batch_size', 10**30, 'no integer of 2**63'),
    ('meta.config.policy.learn.x', LONG, 'no text of more than 4096 characters'),
    ('meta.config.policy.learn', {LONG: 1}, 'no key of more than 100 characters'),
    ('meta.config.policy.learn', {str(i): i for i in range(2_000)}, 'at most 1000 keys'),
    ('meta.config.policy.model.hidden_sizes', [8] * 2_000, 'at most 1000 keys'),
    ('meta.env_step', -5, 'env_step is -5'),
    ('meta.env_step', 'many', "env_step is 'many'"),
    ('meta.env_step', 1.5, 'env_step is 1.5'),
    ('meta.env_step', True, 'env_step is True'),
    ('meta.env_step', 7, 'env_step is 7 in meta and 152 in state'),
    ('meta.env_step', ..., 'env_step is missing'),
    ('meta.train_iter', 2**53, 'train_iter is 9007199254740992'),  # the first that float64 cannot tell from the next
    ('meta.best_return', 'high', "best_return is 'high'"),
    ('meta.obs_space', ..., 'obs_space is missing'),
    ('meta.obs_space', None, 'obs_space is None'),
    ('meta.obs_space', {'kind': 'sphere'}, 'its kind is none that zoo knows'),
    ('meta.obs_space.shape', [2**20, 2**20], 'obs_space.box'),
    ('meta.obs_space.shape', [-4], 'obs_space.box.shape.0 is -4'),
    ('meta.obs_space.low', ['low'] * 4, "obs_space.box.low.0 is 'low': it should be a number"),
    ('meta.obs_space.low', ['nan'] * 4, 'obs_space.box.low.0'),
    ('meta.obs_space.low', [], 'should have 4 bounds'),
    ('meta.obs_space.dtype', 'object', "obs_space.box.dtype is 'object': it should match pattern"),
    ('meta.action_space', {'kind': 'discrete', 'n': 0, 'start': 0}, 'action_space.discrete.n is 0'),
    ('meta.action_space', {'kind': 'discrete', 'n': 2**70, 'start': 0}, 'action_space.discrete.n'),
    ('meta.action_space.start', ..., 'action_space.discrete.start is missing'),
    ('meta.version', 'new', "version is 'new'"),
    ('meta.surplus', 1, 'surplus is unknown'),
    ('state.policy', ..., 'policy is missing'),
    ('state.policy', TENSOR, 'policy is tensor'),
    ('state.counter', ..., 'counter is missing'),
    ('state.counter', [], 'counter is []'),
    ('state.counter.episode', None, 'counter.episode is None'),
    ('state.counter.wall_s', float('inf'), 'counter.wall_s is inf'),
    ('state.counter.env_step', -1, 'counter.env_step is -1'),
    ('state.buffer', 1, 'buffer is 1'),
    ('state.extra', {}, 'extra is unknown'),
]


@pytest.mark.parametrize(('key', 'value', 'said'), META, ids=[f'{key}={str(value)[:20]}' for key, value, _ in META])
def test_meta_or_state_of_another_form_is_one_sentence(tmp_path: Path, key: str, value: Any, said: str) -> None:
    path = with_value(tmp_path / 'c', key, value)
    with pytest.raises(CheckpointError) as error:
        saved_run(load_checkpoint(path))
    assert said in str(error.value) and str(error.value).startswith(f'checkpoint {path} is malformed')
    assert '\n' not in str(error.value) and len(str(error.value)) < 600


def test_config_of_a_thousand_keys_and_items_is_read_and_no_larger_one() -> None:
    config = {'env': {f'k{i}': i for i in range(499)}, 'stop': list(range(499))}  # and the keys of the two
    check_config_size(config)
    with pytest.raises(ValueError, match='should have at most 1000 keys and items of lists; pass data in files'):
        check_config_size({**config, 'seed': 0})


COMMANDS = {'eval': ['eval', '{}', '--episodes', '1'], 'resume': ['train', '--resume', '{}']}


@pytest.mark.parametrize('command', COMMANDS)
@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('meta.config', None),
        ('meta.obs_space', ...),
        ('meta.env_step', -5),
        ('state.policy', ...),
        ('state.policy', {}),
        ('state.policy.model', {}),
        ('state.counter', ...),
        ('meta.config.policy.learn', 'x'),
        ('meta.config.policy.learn.batch_size', 'x'),
        ('meta.config.env.collector_env_num', 'x'),
        ('meta.config.env.surplus', 1),
        ('meta.config.env.id', 'Nothing-v0'),
        ('meta.config.env.id', 'Pendulum-v1'),
        ('meta.config.policy.type', 'pgg'),
        ('meta.config.policy.model.type', 'nothing'),
        ('meta.config.policy.model.hidden_sizes', [9]),
        ('meta.config.policy.model.hidden_sizes', [200_000, 200_000]),
        ('meta.config.policy.model.hidden_sizes', [2**40, 2**40]),
    ],
)
def test_commands_end_with_one_line_and_exit_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    key: str,
    value: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = with_value(tmp_path / 'c', key, value)
    assert main([word.format(path) for word in COMMANDS[command]]) == 2
    out, err = capsys.readouterr()
    assert out == '' and err.count('\n') == 1 and err.startswith('zoo: error: ')
    assert os.listdir(tmp_path) == ['c']  # nothing was made


WEIGHT = 'policy/model/actor_encoder.layers.0.weight'
MALFORMED = 'is malformed although its checksum is correct'


@pytest.mark.parametrize(
    ('entry', 'field', 'value', 'said'),
    [
        *(
            ('__metadata__', 'zoo_format', number, 'but the formats are 1 to')
            for number in ('0', '-1', '1.0', 'two', '', '9' * 5_000)
        ),
        *(
            ('__metadata__', 'meta', text, MALFORMED)
            for text in ('[]', '{', '[' * 50 + ']' * 50, '1' * 5_000, '"text"')
        ),
        ('__metadata__', 'meta', '{"a":' * 900 + '1' + '}' * 900, 'meta has more than 64 levels|recursion'),
        (WEIGHT, 'dtype', 'F128', 'is malformed.*dtype'),
        (WEIGHT, 'dtype', None, 'is malformed.*dtype'),
        (WEIGHT, 'shape', [2**50], r'is malformed.*shape\.0'),
        (WEIGHT, 'shape', [3], 'is malformed.*should have 12 bytes'),
        (WEIGHT, 'shape', 'x', 'is malformed.*shape'),
        (WEIGHT, 'data_offsets', [0], 'is malformed.*data_offsets'),
        (WEIGHT, 'data_offsets', [8, 0], 'is malformed.*bytes'),
        (WEIGHT, 'data_offsets', [1_000_000, 1_000_128], 'is malformed.*does not begin where the one before it ends'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_header_that_no_run_writes_is_said(tmp_path: Path, entry: str, field: str, value: Any, said: str) -> None:
    header, tensors = components_of((OLD / 'ppo_categorical.safetensors').read_bytes())
    header[entry][field] = value
    (tmp_path / 'c').write_bytes(joined(header, tensors))
    with pytest.raises(CheckpointError, match=said) as error:
        load_checkpoint(tmp_path / 'c')
    assert len(str(error.value)) < 600


def test_shape_without_elements_whose_strides_no_integer_holds_is_refused(tmp_path: Path) -> None:
    header, tensors = components_of((OLD / 'ppo_categorical.safetensors').read_bytes())
    header['x'] = {'dtype': 'F32', 'shape': [0, 2**36, 2**36], 'data_offsets': [len(tensors)] * 2}
    (tmp_path / 'c').write_bytes(joined(header, tensors))
    with pytest.raises(CheckpointError, match=f'{MALFORMED}: x is '):
        load_checkpoint(tmp_path / 'c')


def test_tensor_without_its_place_in_the_state_is_said(tmp_path: Path) -> None:
    header, tensors = components_of((OLD / 'ppo_categorical.safetensors').read_bytes())
    header['policy/train_iter/x'] = header.pop('policy/collect/generator')
    (tmp_path / 'c').write_bytes(joined(header, tensors))
    with pytest.raises(CheckpointError, match='is malformed'):
        load_checkpoint(tmp_path / 'c')


def test_truth_values_of_another_byte_are_refused(tmp_path: Path) -> None:
    def with_flags(state: dict[str, Any], meta: dict[str, Any]) -> None:
        state['policy']['model']['flags'] = torch.tensor([True, False])

    data = crafted(tmp_path / 'c', with_flags).read_bytes()
    header, tensors = components_of(data)
    start = header['policy/model/flags']['data_offsets'][0]
    (tmp_path / 'c').write_bytes(joined(header, tensors[:start] + b'\x07' + tensors[start + 1 :]))
    with pytest.raises(CheckpointError, match='truth values other than 0 and 1'):
        load_checkpoint(tmp_path / 'c')


# --- sizes ---


@pytest.mark.parametrize('make', ['pipe', 'device', 'folder'])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: str) -> None:
    path = tmp_path / 'step_000000001.safetensors'
    if make == 'pipe':
        os.mkfifo(path)
    elif make == 'folder':
        path.mkdir()
    else:
        path.symlink_to('/dev/zero')
    for given in (path, tmp_path):
        with pytest.raises(CheckpointError, match=f'is a {"named pipe" if make == "pipe" else make}'):
            load_checkpoint(given)


def test_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    for name in ('a\0b', 'x' * 5_000):
        with pytest.raises(CheckpointError):
            load_checkpoint(tmp_path / name)


def test_header_larger_than_any_that_zoo_writes_is_not_read(tmp_path: Path) -> None:
    n = 1 << 25
    with open(tmp_path / 'c', 'wb') as file:
        file.write(n.to_bytes(8, 'little') + b'{')
        file.truncate(n + 100)
    with pytest.raises(CheckpointError, match='has a header of 34 MB, at most 17 MB can be read'):
        load_checkpoint(tmp_path / 'c')


def test_file_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    data = (OLD / 'ppo_categorical.safetensors').read_bytes()
    with open(tmp_path / 'c', 'wb') as file:
        file.write(data)
        file.truncate(1 << 43)  # sparse: takes no disk space
    start = time.monotonic()
    with pytest.raises(CheckpointError, match='has tensors of 8,796,093 MB, at most'):
        load_checkpoint(tmp_path / 'c')
    assert time.monotonic() - start < 5  # too short to have read 8 TB


def test_model_larger_than_the_file_is_not_built(tmp_path: Path) -> None:
    path = with_value(tmp_path / 'c', 'meta.config.policy.model.hidden_sizes', [200_000, 200_000])
    with pytest.raises(CheckpointError, match=r'describes a policy of 160,\d+ MB or more but its tensors have'):
        load_policy(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('key', 'space'),
    [
        ('meta.obs_space', {'kind': 'box', 'shape': [2**22], 'dtype': 'float32', 'low': ['0.0'], 'high': ['1.0']}),
        ('meta.obs_space', {'kind': 'discrete', 'n': 2**31, 'start': 0}),
        ('meta.action_space', {'kind': 'discrete', 'n': 2**31, 'start': 0}),
        ('meta.action_space', {'kind': 'box', 'shape': [2**20], 'dtype': 'float32', 'low': ['0.0'], 'high': ['1.0']}),
    ],
)
def test_space_larger_than_that_of_the_weights_is_not_built(tmp_path: Path, key: str, space: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match='does not fit'):
        load_policy(with_value(tmp_path / 'c', key, space))


@pytest.mark.parametrize(
    ('space', 'larger'),
    [
        (MultiBinary((2**20,)), MultiBinary((2**20 + 1,))),
        # of several choices the numbers are the columns of their one-hot code
        (MultiDiscrete((2**20 - 2, 2), (0, 0), (2,)), MultiDiscrete((2**20 - 2, 3), (0, 0), (2,))),
    ],
    ids=['multi_binary', 'multi_discrete'],
)
def test_action_space_of_2_to_the_20_numbers_and_no_larger_one_is_saved_and_read(
    tmp_path: Path, space: Any, larger: Any
) -> None:
    assert space_problem('action', space) == ''
    path = with_value(tmp_path / 'c', 'meta.action_space', space.to_json())
    assert saved_run(load_checkpoint(path)).action_space == space
    assert 'has 1,048,577 numbers but a checkpoint holds a space of at most 1,048,576' in space_problem(
        'action', larger
    )
    path = with_value(tmp_path / 'c', 'meta.action_space', larger.to_json())
    with pytest.raises(CheckpointError, match='is malformed .* should have at most 1048576 numbers'):
        saved_run(load_checkpoint(path))


# --- weights ---


def test_weights_of_another_policy_are_named(tmp_path: Path) -> None:
    state, _, _ = load_checkpoint(OLD / 'ppg_categorical.safetensors')
    path = with_value(tmp_path / 'c', 'state.policy', state['policy'])
    with pytest.raises(CheckpointError, match='does not fit: .*aux_head'):
        load_policy(path)


@pytest.mark.parametrize('number', [float('nan'), float('inf')])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, number: float) -> None:
    def spoil(state: dict[str, Any], meta: dict[str, Any]) -> None:
        state['policy']['model']['policy_head.weight'][1, 3] = number

    path = crafted(tmp_path / 'c', spoil)
    said = r'has numbers in (policy/)?model/policy_head\.weight that are not finite'
    with pytest.raises(CheckpointError, match=said):
        load_policy(path)
    with pytest.raises(CheckpointError, match=said):
        serial_pipeline(resume=path, overrides=[f'logger.root={tmp_path}'])


# --- state of a resume ---


@pytest.mark.parametrize(
    ('source', 'key', 'value'),
    [
        ('ppo_categorical', 'state.policy.learn.train_iter', 'many'),
        ('ppo_categorical', 'state.policy.learn.train_iter', 0.5),
        ('ppo_categorical', 'state.policy.learn.train_iter', -1),
        ('ppo_categorical', 'state.policy.learn.train_iter', 2**100),
        ('ppo_categorical', 'state.policy.learn.optimizer', {}),
        ('ppo_offpolicy_categorical', 'state.buffer.draws.all.generator', torch.zeros(5_056, dtype=torch.uint8)),
        ('ppg_categorical', 'state.policy.learn.policy_phase', None),
        ('ppg_categorical', 'state.memory.obs', 'x'),
        ('ppg_categorical', 'state.memory', {'obs': TENSOR}),
        ('ppo_offpolicy_categorical', 'state.buffer', {'x': 1}),
        ('ppo_offpolicy_categorical', 'state.buffer.ring', {}),
        ('ppo_offpolicy_categorical', 'state.buffer.ring.data', {'obs': TENSOR}),
        ('ppo_offpolicy_categorical', 'state.buffer.ring.n_push', 'x'),
        ('ppo_offpolicy_categorical', 'state.buffer.ring.cursor', 10**9),
        ('ppo_offpolicy_categorical', 'state.buffer.ring.push_number', TENSOR),
        ('ppo_offpolicy_categorical', 'state.buffer.draws.all.n_use', TENSOR),
    ],
)
def test_state_that_the_run_cannot_take_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, key: str, value: Any
) -> None:
    path = with_value(tmp_path / 'c', key, value, source)
    words = ['max_env_step=1_000', f'logger.root={tmp_path}', 'logger.console=off', 'policy.learn.executor=eager']
    assert main(['train', '--resume', str(path), *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith('zoo: error: ')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('key', 'value'), [('state.memory.obs', torch.zeros(32, 5)), ('state.memory.return_', torch.zeros(32, 1))]
)
def test_auxiliary_memory_of_another_form_is_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: Any
) -> None:
    path = with_value(tmp_path / 'c', key, value, 'ppg_categorical')
    serial_pipeline(resume=path, max_env_step=1_000, overrides=[f'logger.root={tmp_path}', 'logger.console=off'])
    assert caplog.text.count('the auxiliary memory begins empty') == 1


# --- checkpoints changed at random ---


@pytest.mark.soak
def test_changed_checkpoints_end_in_a_sentence_and_start_import_and_overwrite_nothing(tmp_path: Path) -> None:
    """Each file goes through load_policy, eval and resume; see `Watch` of `tests.run.checkpoint_fuzz` for the forbidden events.

    More files: `python benchmarks/faults.py checkpoints --n 2000`.
    """
    n = 150
    report = run_fuzz('tests.run.checkpoint_fuzz', tmp_path, n, timeout=900)
    assert report['ends'].keys() <= {'done', 'refused', 'failed'} and sum(report['ends'].values()) == 3 * n
    assert report['ends']['refused'] > n  # most changes are refused
    assert report['peak_gb'] < 2
    assert not {'sprung', 'pwned'} & set(report['made'])


def test_more_keys_than_any_run_has_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = with_value(tmp_path / 'c', 'meta.version', {f'k{i}': 1 for i in range(100_001)})
    with pytest.raises(
        CheckpointError, match='is malformed although its checksum is correct: meta has more than 100,000 keys'
    ):
        load_checkpoint(path)


@pytest.mark.parametrize('value', ['x', 3, None, [1], True, {'x': 1}])
@pytest.mark.parametrize('has_statistics', [True, False])
def test_statistics_that_are_none_do_not_fit(
    value: Any, has_statistics: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(state: dict[str, Any], meta: dict[str, Any]) -> None:
        meta['config']['policy']['learn']['value_norm'] = has_statistics
        state['policy']['normalizer'] = value

    assert main(['train', '--resume', str(crafted(tmp_path / 'c', change))]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if 'error' in line]
    assert 'does not fit: normalizer' in error


@pytest.mark.parametrize('value', [[1], 'x', 3, True])
@pytest.mark.parametrize('key', ['policy.eval', 'policy.eval.env', 'policy.eval.sets'])
def test_sections_of_evaluations_that_are_none_are_refused_by_every_reader(
    key: str, value: Any, tmp_path: Path
) -> None:
    path = with_value(tmp_path / 'c', f'meta.config.{key}', value)
    with pytest.raises(CheckpointError, match=f'is malformed although its checksum is correct: config.{key} is '):
        saved_run(load_checkpoint(path))
