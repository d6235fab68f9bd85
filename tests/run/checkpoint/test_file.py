"""Checkpoints: exact round trips; damaged and foreign files; kills and full disks in the middle of a save."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import zoo.run.checkpoint.file
from tests.forked import run_python
from tests.run.processes import ROOT, environment, small_disk, small_files
from zoo.run.base_config import CheckpointConfig
from zoo.run.checkpoint.file import DTYPES, CheckpointError, fit_state, load_checkpoint, save_checkpoint
from zoo.run.checkpoint.manager import CheckpointManager, SaveError

META = {'config': {'seed': 0, 'policy': {'lr': 1e-3, 'clip': None}}, 'env_step': 1024, 'best': [1.5, True, 'x"y']}


def small_state() -> dict[str, Any]:
    return {'model': {'w': torch.arange(12.0).reshape(3, 4), 'b': torch.tensor([0.5, -0.25])}, 'train_iter': 7}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / 'a.safetensors'
    save_checkpoint(path, small_state(), META)
    return path


def assert_equal(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_equal(got[key], want[key])
    elif isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert torch.equal(got.reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8))
    else:
        assert got == want


# --- what is saved comes back ---


def test_round_trip_all_leaf_kinds_bit_equal_and_in_order(tmp_path: Path) -> None:
    gen = torch.Generator().manual_seed(0)
    floats = torch.randn(5, 7, generator=gen)
    state = {
        'z': {str(dtype)[6:]: (floats * 50).abs().to(dtype) for dtype in DTYPES},
        'a': {'scalar': torch.tensor(3.25), 'empty': torch.empty(0, 4), 'nan': torch.tensor([1.0, float('nan')])},
        'rng': gen.get_state(),
        'none': None,
        'nothing': {},
        'list': [1, [2.5, None], {'k': 'v'}],
        'flag': True,
        'big': 2**127 + 1,
        'float': 0.1,
        'low': float('-inf'),
        'text': 'ü "sha256":"',
        'last': torch.tensor(1),
    }
    save_checkpoint(tmp_path / 'c', state, META)
    got = load_checkpoint(tmp_path / 'c')
    assert_equal(got.state, state)
    assert got.meta == META
    assert got.path == tmp_path / 'c'


def test_round_trip_views_tied_and_strided_tensors_stored_in_full(tmp_path: Path) -> None:
    flat = torch.arange(20.0)
    weight = torch.nn.Parameter(flat[:6].view(2, 3))
    state = {'first': weight, 'tied': weight, 'overlap': flat[4:], 'turned': flat.view(4, 5).t(), 'strided': flat[::2]}
    save_checkpoint(tmp_path / 'c', state, {})
    got = load_checkpoint(tmp_path / 'c').state
    for name, tensor in state.items():
        assert torch.equal(got[name], tensor.detach()), name
    got['first'].zero_()
    assert torch.equal(got['tied'], weight.detach())  # loaded tensors do not share memory


def test_save_file_is_read_by_safetensors_itself(saved: Path) -> None:
    with safetensors.safe_open(saved, 'pt') as file:
        assert sorted(file.keys()) == ['model/b', 'model/w']
        assert torch.equal(file.get_tensor('model/w'), torch.arange(12.0).reshape(3, 4))
        assert json.loads(file.metadata()['meta']) == META


def test_state_of_a_torch_optimizer_comes_back_and_continues_bit_equal(tmp_path: Path) -> None:
    """Its state has integer keys, lists of dicts and tuples; the optimiser into which it is loaded has no state yet."""

    def module() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        return net, torch.optim.Adam(net.parameters(), lr=1e-2, betas=(0.8, 0.9))

    def step(net: torch.nn.Linear, adam: torch.optim.Adam) -> None:
        adam.zero_grad()
        net(torch.ones(4, 3)).square().sum().backward()
        adam.step()

    (net, adam), (other, fresh) = module(), module()
    step(net, adam)
    path = tmp_path / 'a.safetensors'
    save_checkpoint(path, {'net': dict(net.state_dict()), 'learn': {'opt': adam.state_dict()}}, META)
    got = load_checkpoint(path).state
    fit_state({'net': dict(other.state_dict()), 'learn': {'opt': fresh.state_dict()}}, got, path)
    other.load_state_dict(got['net'])
    fresh.load_state_dict(got['learn']['opt'])
    step(net, adam), step(other, fresh)
    assert torch.equal(net.weight, other.weight)
    assert adam.state_dict()['state'][0]['step'] == fresh.state_dict()['state'][0]['step'] == 2


def test_save_file_has_the_usual_mode(saved: Path) -> None:
    (saved.parent / 'other').touch()
    assert saved.stat().st_mode == (saved.parent / 'other').stat().st_mode


@pytest.mark.parametrize(
    ('state', 'meta', 'named'),
    [
        ({'a': {'b': {1, 2}}}, {}, 'state a/b is of type set'),
        ({'a': [0, {(1,): 2}]}, {}, r'state a\[1\] is of type dict'),
        ({'a': [print]}, {}, r'state a\[0\] is of type builtin_function'),
        ({'__metadata__': 1}, {}, "key '__metadata__'"),
        ({'x': {2.5: 1}}, {}, "key 2.5 under 'x/'"),
        ({'x': torch.ones(1, dtype=torch.complex128)}, {}, 'state x has dtype torch.complex128'),
        ({}, {'env': {'id': print}}, 'meta/env/id is of type builtin_function'),
    ],
)
def test_save_unsupported_leaf_names_it_and_leaves_old_file(saved: Path, state: dict, meta: dict, named: str) -> None:
    before = saved.read_bytes()
    with pytest.raises(TypeError, match=named):
        save_checkpoint(saved, state, meta)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


# --- damaged and foreign files ---


@pytest.mark.slow
@pytest.mark.parametrize('mask', [0x01, 0x20, 0x80, 0xFF])
def test_load_any_flipped_byte_is_refused(saved: Path, mask: int) -> None:
    good = saved.read_bytes()
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= mask
        saved.write_bytes(bad)
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(saved)
        assert str(saved) in str(error.value)
    saved.write_bytes(good)
    assert_equal(load_checkpoint(saved).state, small_state())


def test_load_any_truncation_or_extension_is_refused(saved: Path) -> None:
    good = saved.read_bytes()
    for bad in [*(good[:n] for n in range(len(good))), good + b'\0', good + good]:
        saved.write_bytes(bad)
        with pytest.raises(CheckpointError):
            load_checkpoint(saved)


def test_load_swapped_tensors_of_equal_size_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / 'c', {'aaaa': torch.zeros(4), 'bbbb': torch.ones(4)}, {})
    data = (tmp_path / 'c').read_bytes()
    head, tail = data.rsplit(b'"aaaa"', 1)
    (tmp_path / 'c').write_bytes(head + b'"bbbb"' + tail.replace(b'"bbbb"', b'"aaaa"'))
    with pytest.raises(CheckpointError, match='does not match its checksum'):
        load_checkpoint(tmp_path / 'c')


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, 'w')


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as file:
        file.writestr('data', '{}')
        file.writestr('policy.pth', b'\x80\x02')
    return buffer.getvalue()


def torch_bytes(value: object, zipped: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def test_load_pickles_are_refused_and_not_executed(tmp_path: Path) -> None:
    trap = Trap(str(tmp_path / 'sprung'))
    pickles = [pickle.dumps(trap, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for data in [*pickles, torch_bytes(trap, zipped=True), torch_bytes(trap, zipped=False)]:
        (tmp_path / 'c').write_bytes(data)
        with pytest.raises(CheckpointError, match='zoo reads only the checkpoints it wrote'):
            load_checkpoint(tmp_path / 'c')
    assert not (tmp_path / 'sprung').exists()
    pickle.loads(pickles[0]).close()  # the trap does work
    assert (tmp_path / 'sprung').exists()


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        (b'', 'is empty or truncated: it has 0 bytes'),
        (zip_bytes(), 'is a zip archive, as torch.save and Stable-Baselines3 write'),
        (torch_bytes({'w': torch.ones(2)}, zipped=True), 'is a zip archive'),
        (pickle.dumps({'w': list(range(9))}), 'is a pickle'),
        (safetensors.torch.save({'w': torch.ones(2)}), 'is a safetensors file of another program'),
        (safetensors.torch.save({'w': torch.ones(2)}, {'format': 'pt'}), 'is a safetensors file of another program'),
        (b'seed: 0\npolicy: {type: ppo}\n', 'is not a safetensors file'),
        (b'\x40\x0d\x03\x00\0\0\0\0{"a":' + b'[' * 200_000, 'is truncated or was changed'),
    ],
    ids=['empty', 'zip', 'torch', 'pickle', 'safetensors', 'safetensors of transformers', 'yaml', 'deep json'],
)
def test_load_foreign_file_says_what_it_is(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / 'c').write_bytes(data)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(tmp_path / 'c')
    assert str(error.value).startswith(f'checkpoint {tmp_path / "c"} {reason}')
    assert error.value.path == tmp_path / 'c' and error.value.reason.startswith(reason)


def test_load_newer_format_says_upgrade(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.run.checkpoint.file, 'FORMAT', zoo.run.checkpoint.file.FORMAT + 1)
    save_checkpoint(saved, small_state(), META)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match='has format 5 and this zoo reads formats up to 4: upgrade with git pull'):
        load_checkpoint(saved)


@pytest.mark.parametrize('name', ['none.safetensors', 'no/such/folder'])
def test_load_missing_path_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f'{name} does not exist'):
        load_checkpoint(tmp_path / name)


def test_checkpoint_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(CheckpointError('run/x', 'is bad')))
    assert str(error) == 'checkpoint run/x is bad' and error.path == Path('run/x')


def test_fit_state_equal_structure_passes_whatever_the_values() -> None:
    same_form = {'model': {'w': torch.zeros(3, 4), 'b': torch.ones(2)}, 'train_iter': 0}
    assert fit_state(small_state(), same_form, 'x') is None  # type: ignore[func-returns-value]


def test_integers_up_to_128_bits_fit_as_those_of_numpys_generators() -> None:
    fit_state({'x': 0}, {'x': 2**128 - 1}, 'x')
    for number in (2**128, -(2**128)):
        with pytest.raises(CheckpointError, match='x is a number out of range in the file and a number in this run'):
            fit_state({'x': 0}, {'x': number}, 'x')


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (
            {'w': torch.zeros(3, 5), 'b': torch.zeros(2)},
            r'model/w is \[3, 5\] float32 in the file and \[3, 4\] float32',
        ),
        (
            {'w': torch.zeros(3, 4), 'b': torch.zeros(2).double()},
            r'model/b is \[2\] float64 in the file and \[2\] float32',
        ),
        ({'w': torch.zeros(3, 4)}, 'model/b is not in the file;'),
        ({'w': torch.zeros(3, 4), 'b': 1.0}, r'model/b is a number in the file and \[2\] float32 in this run'),
        ({'w': torch.zeros(3, 4), 'b': torch.zeros(2), 'c': torch.zeros(1)}, 'model/c is only in the file;'),
        ({'p': 0, 'q': 0, 'r': 0}, 'model/w is not in the file, model/b is not in .*, model/p is only .*, and 2 more;'),
    ],
)
def test_fit_state_misfit_is_named(model: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f'checkpoint some/path does not fit: {message}'):
        fit_state(small_state(), {'model': model, 'train_iter': 0}, 'some/path')


# --- a run's checkpoints ---


def names(run_dir: Path) -> list[str]:
    return sorted(os.listdir(run_dir / 'checkpoints'))


def test_manager_save_keeps_the_last_k_and_the_best(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, CheckpointConfig(keep_last=2))
    assert manager.save_best(50, {'n': 50}, {}) == tmp_path / 'checkpoints/best.safetensors'
    for step in (100, 200, 300):
        assert manager.save(step, {'n': step}, {}) == tmp_path / f'checkpoints/step_{step:09d}.safetensors'
    assert names(tmp_path) == ['best.safetensors', 'step_000000200.safetensors', 'step_000000300.safetensors']
    assert load_checkpoint(tmp_path).state == {'n': 300}
    assert load_checkpoint(tmp_path / 'checkpoints').path == tmp_path / 'checkpoints/step_000000300.safetensors'


def test_manager_steps_beyond_nine_digits_stay_in_order(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, CheckpointConfig(keep_last=2))
    for step in (999_999_998, 999_999_999, 1_000_000_000):
        manager.save(step, {'n': step}, {})
    assert load_checkpoint(tmp_path).state == {'n': 1_000_000_000}
    assert names(tmp_path) == ['step_1000000000.safetensors', 'step_999999999.safetensors']


def test_manager_save_after_resume_from_older_drops_later_steps(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        CheckpointManager(tmp_path, CheckpointConfig()).save(step, {'n': step}, {})
    CheckpointManager(tmp_path, CheckpointConfig()).save(150, {'n': 150}, {})
    assert names(tmp_path) == ['step_000000100.safetensors', 'step_000000150.safetensors']


def test_load_run_folder_skips_damaged_newest_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = CheckpointManager(tmp_path, CheckpointConfig())
    for step in (100, 200, 300):
        manager.save(step, {'n': step}, {})
    (tmp_path / 'checkpoints/step_000000300.safetensors').write_bytes(b'')
    os.truncate(tmp_path / 'checkpoints/step_000000200.safetensors', 40)
    assert load_checkpoint(tmp_path).state == {'n': 100}
    assert [r.levelname for r in caplog.records] == ['WARNING', 'WARNING']
    assert 'step_000000300.safetensors is empty' in caplog.messages[0]


def test_load_run_folder_with_only_bad_files_names_the_newest(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, CheckpointConfig())
    for step in (100, 200):
        path = manager.save(step, {'n': step}, {})
        assert path is not None
        os.truncate(path, 100)
    with pytest.raises(CheckpointError, match='has no valid checkpoint among 2; the newest: .*step_000000200.safe'):
        load_checkpoint(tmp_path)


def test_load_folder_of_runs_names_the_newest(tmp_path: Path) -> None:
    runs = tmp_path / 'runs' / 'experiment'
    for second, name in enumerate(('b', 'c', 'a')):
        CheckpointManager(runs / name, CheckpointConfig()).save(100, {'n': 1}, {})
        os.utime(runs / name, (second, second))
    for folder in (runs, runs.parent):
        with pytest.raises(CheckpointError, match=f'the newest run in it is {runs / "a"}: pass that'):
            load_checkpoint(folder)


def test_load_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='is a folder without checkpoints'):
        load_checkpoint(tmp_path)


# --- kills and full disks ---

KILLED_SAVE = """
import os, signal, sys, torch
from zoo.run.base_config import CheckpointConfig
from zoo.run.checkpoint.manager import CheckpointManager

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

class Bomb(torch.Tensor):
    def detach(self):  # called when its bytes are about to be written
        die()

manager = CheckpointManager(sys.argv[1], CheckpointConfig())
manager.save(100, {'a': torch.ones(1000), 'b': torch.ones(5)}, {})
second = torch.zeros(5)
if sys.argv[2] == 'data':
    second = second.as_subclass(Bomb)
elif sys.argv[2] == 'sync':
    os.fsync = die
elif sys.argv[2] == 'rename':
    os.replace = die
manager.save(int(sys.argv[3]), {'a': torch.zeros(1000), 'b': second}, {})
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('point', 'step'), [('data', 100), ('sync', 200), ('rename', 100)])
def test_save_killed_at_a_point_leaves_older_checkpoint(tmp_path: Path, point: str, step: int) -> None:
    (tmp_path / 'killed.py').write_text(KILLED_SAVE)
    result = run_python(tmp_path / 'killed.py', tmp_path, point, step, PYTHONPATH=str(ROOT))
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert any(name.endswith('.tmp') for name in names(tmp_path))  # it was killed in the middle of a save
    assert torch.equal(load_checkpoint(tmp_path).state['a'], torch.ones(1000))
    CheckpointManager(tmp_path, CheckpointConfig()).save(300, {}, {})
    assert not any(name.endswith('.tmp') for name in names(tmp_path))


ENDLESS_SAVES = """
import sys, torch
from zoo.run.checkpoint.file import save_checkpoint
for n in range(1_000_000):
    save_checkpoint(sys.argv[1], {'w': torch.full((1_000_000,), float(n))}, {'n': n})
    if n == 0:
        print('begun', flush=True)
"""


@pytest.mark.long
def test_save_stopped_or_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path, command = tmp_path / 'best.safetensors', [sys.executable, '-c', ENDLESS_SAVES]
    with subprocess.Popen([*command, str(path)], env=environment(), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == 'begun\n'
        for delay in (0.0, 0.013, 0.031, 0.005, 0.017):
            time.sleep(delay)
            child.send_signal(signal.SIGSTOP if delay != 0.017 else signal.SIGKILL)
            got = load_checkpoint(path)
            assert torch.equal(got.state['w'], torch.full((1_000_000,), float(got.meta['n'])))
            child.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(('how', 'reason'), [('limit', 'File too large'), ('disk', 'No space left on device')])
def test_save_without_room_is_told_and_leaves_the_older_checkpoint(tmp_path: Path, how: str, reason: str) -> None:
    room = small_files(65_536) if how == 'limit' else small_disk(tmp_path / 'disk', '96k')
    with room as disk:
        run_dir = disk or tmp_path
        manager, folder = CheckpointManager(run_dir, CheckpointConfig()), run_dir / 'checkpoints'
        path = manager.save(100, {'w': torch.ones(1000)}, {})
        for save, name in ((manager.save, 'step_000000200'), (manager.save_best, 'best')):
            with pytest.raises(SaveError) as told:
                save(200, {'w': torch.ones(100_000)}, {})
            said = f'could not be saved ({reason}); saved last was env step 100, in {path}'
            assert str(told.value) == f'checkpoint {folder / name}.safetensors {said}'
        assert os.listdir(folder) == ['step_000000100.safetensors']  # no temporary file is left
        assert torch.equal(load_checkpoint(run_dir).state['w'], torch.ones(1000))
        assert manager.save(300, {'w': torch.ones(1000)}, {}) is not None


def test_manager_save_folder_is_a_file_says_that_nothing_is_saved(tmp_path: Path) -> None:
    (tmp_path / 'checkpoints').touch()
    with pytest.raises(SaveError, match=r'step_000000001.safetensors could not be saved \(.*\); no other one is saved'):
        CheckpointManager(tmp_path, CheckpointConfig()).save(1, {}, {})


def test_state_too_large_to_be_no_tensor_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.run.checkpoint.file, 'MAX_HEADER', 10_000)
    save_checkpoint(tmp_path / 'a.safetensors', {'x': [0.5] * 100}, META)
    with pytest.raises(
        TypeError, match='MB that is not in tensors, at most 0 MB can be saved; convert long lists to tensors'
    ):
        save_checkpoint(tmp_path / 'b.safetensors', {'x': [0.5] * 5_000}, META)
    assert [file.name for file in tmp_path.iterdir()] == ['a.safetensors']


@pytest.mark.parametrize(
    ('learn', 'now'),
    [
        ({'policy_loss': 'clip', 'kl_weight': 0.5}, {'policy_loss': 'clip'}),  # it had no effect
        ({'kl_weight': 0.5}, {}),
        ({'policy_loss': 'kl', 'kl_weight': 0.5}, {'policy_loss': 'kl', 'kl_weight': 0.5}),
    ],
)
def test_kl_weight_of_format_3_is_kept_where_it_had_an_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learn: dict[str, Any], now: dict[str, Any]
) -> None:
    path = tmp_path / 'a.safetensors'
    with monkeypatch.context() as patch:
        patch.setattr(zoo.run.checkpoint.file, 'FORMAT', 3)
        save_checkpoint(path, small_state(), {'config': {'env': {}, 'policy': {'type': 'ppg', 'learn': learn}}})
    assert load_checkpoint(path).meta['config']['policy']['learn'] == now


def test_header_as_long_as_the_limit_is_saved_and_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_header = int.from_bytes(saved.read_bytes()[:8], 'little')
    monkeypatch.setattr(zoo.run.checkpoint.file, 'MAX_HEADER', n_header)
    save_checkpoint(saved, small_state(), META)
    assert_equal(load_checkpoint(saved).state, small_state())
    monkeypatch.setattr(zoo.run.checkpoint.file, 'MAX_HEADER', n_header - 1)
    with pytest.raises(TypeError, match='can be saved; convert long lists to tensors'):
        save_checkpoint(saved, small_state(), META)
    with pytest.raises(CheckpointError, match='has a header of .* can be read; use another file'):
        load_checkpoint(saved)


def test_text_of_a_file_is_shown_short_and_without_control_characters() -> None:
    shown = zoo.run.checkpoint.file.shown
    assert shown('plain') == 'plain' and shown('\x1b[2J') == repr('\x1b[2J')
    assert shown('x' * 500) == 'x' * 97 + '...' and len(shown('\x00' * 500)) == 100
