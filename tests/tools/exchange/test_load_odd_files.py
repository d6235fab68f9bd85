"""Odd files of every kind of model, harmless ones: each is imported or gets one sentence, and nothing of it is run."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from zoo.core.errors import UserError

MODELS = Path(__file__).parent / 'models'
UNKNOWN_CLASS = b'\x80\x02cnowhere.at_all\nThing\nq\x00)\x81q\x01}q\x02X\x01\x00\x00\x00aq\x03K\x01sb.'
UNKNOWN_CALL = b'\x80\x02cnowhere.at_all\nact\nq\x00X\x01\x00\x00\x00aq\x01\x85q\x02Rq\x03.'
Odd = Iterator[tuple[str, bytes]]


def odd_bytes(content: bytes, n_changed: int = 8) -> Odd:
    """Content that was cut, changed or replaced as a whole. Args: n_changed: files with one changed byte."""
    yield 'empty', b''
    yield 'json', b'{"policy_class": 1}'
    yield 'text', b'hello\n'
    yield 'zeros', bytes(1000)
    yield 'twice', content * 2
    yield 'behind text', b'hello\n' + content
    yield 'pickle of a number', pickle.dumps(1)
    yield 'pickle of names', pickle.dumps({'a': 1, 'state_dict': {'b': None}})
    yield 'unknown class', UNKNOWN_CLASS
    yield 'unknown call', UNKNOWN_CALL
    for share in (0.02, 0.1, 0.5, 0.9, 0.999):
        yield f'cut at {share}', content[: int(share * len(content))]
    draws = random.Random(0)
    for at in sorted(draws.randrange(len(content)) for _ in range(n_changed)):
        yield f'byte {at}', content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def zipped(members: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, 'w') as file:
        for name, content in members.items():
            file.writestr(name, content)
    return memory.getvalue()


def odd_members(content: bytes) -> Odd:
    """Archives whose members are missing, empty, of another name, or of other content; the first five of many."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    yield 'no members', zipped({})
    yield 'other folder', zipped({f'x/{name}': each for name, each in members.items()})
    for name in list(members)[:5]:
        yield f'without {name}', zipped({other: each for other, each in members.items() if other != name})
        yield f'{name} empty', zipped({**members, name: b''})
        yield f'{name} cut', zipped({**members, name: members[name][: len(members[name]) // 2]})
        yield f'{name} unknown class', zipped({**members, name: UNKNOWN_CLASS})
        yield f'{name} list', zipped({**members, name: b'[]'})


def odd_sb3(content: bytes) -> Odd:
    """Zips of SB3 with other weights and settings."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    settings = json.loads(members['data'])
    without_spaces = {name: value for name, value in settings.items() if 'space' not in name}
    yield 'no spaces', zipped({**members, 'data': json.dumps(without_spaces).encode()})
    for key in ('gamma', 'n_steps', 'batch_size', 'learning_rate', 'n_envs', 'policy_kwargs'):
        for value in (None, 'many', -1, [1], {'a': {}}):
            yield f'{key} {value}', zipped({**members, 'data': json.dumps({**settings, key: value}).encode()})
    weights = torch.load(io.BytesIO(members['policy.pth']), weights_only=True)
    for name, state in odd_weights(weights):
        memory = io.BytesIO()
        torch.save(state, memory)
        yield name, zipped({**members, 'policy.pth': memory.getvalue()})


def odd_weights(weights: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Parameters of other numbers, shapes and names."""
    name = next(name for name, x in weights.items() if x.ndim == 2)
    yield 'nan', {**weights, name: torch.full_like(weights[name], torch.nan)}
    yield 'inf', {**weights, name: torch.full_like(weights[name], torch.inf)}
    yield 'narrow', {**weights, name: weights[name][:, :1]}
    yield 'flat', {**weights, name: weights[name].flatten()}
    yield 'no numbers', {**weights, name: weights[name][:0]}
    yield 'missing', {other: x for other, x in weights.items() if other != name}
    yield 'one more', {**weights, 'further.weight': torch.zeros(2)}
    yield 'a list', list(weights.values())
    yield 'integers', {other: x.long() for other, x in weights.items()}
    yield 'complex', {**weights, name: weights[name].to(torch.complex64)}
    yield 'plain numbers', dict.fromkeys(weights, 1.0)
    yield 'names that are numbers', dict(enumerate(weights.values()))


def cleanrl() -> bytes:
    """Parameters as ppo_continuous_action has them: two towers of three layers, and a free deviation."""
    state = {'actor_logstd': torch.zeros(1, 2)}
    for tower, n_out in (('critic', 1), ('actor_mean', 2)):
        widths = (3, 64, 64, n_out)
        for i in range(3):
            state[f'{tower}.{2 * i}.weight'] = torch.ones(widths[i + 1], widths[i])
            state[f'{tower}.{2 * i}.bias'] = torch.zeros(widths[i + 1])
    memory = io.BytesIO()
    torch.save(state, memory)
    return memory.getvalue()


def odd_cleanrl(content: bytes) -> Odd:
    for name, state in odd_weights(torch.load(io.BytesIO(content), weights_only=True)):
        memory = io.BytesIO()
        torch.save(state, memory)
        yield name, memory.getvalue()


FILES: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Odd] | None]] = {
    'ppo_discrete.zip': ((MODELS / 'ppo_discrete.zip').read_bytes, odd_sb3),
    'recurrent_discrete.zip': ((MODELS / 'recurrent_discrete.zip').read_bytes, odd_sb3),
    'di_discrete.tar': ((MODELS / 'di_discrete.tar').read_bytes, None),
    'agilerl_discrete.pt': ((MODELS / 'agilerl_discrete.pt').read_bytes, None),
    'm.cleanrl_model': (cleanrl, odd_cleanrl),
}


class Watch:
    """What an audit hook saw of a process that runs, connects or imports something that a file names."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_on = False
        sys.addaudithook(self.see)  # it cannot be removed, so it is off after a test

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        names_it = event == 'import' and str(arguments[0]).startswith('nowhere')
        if names_it or event in ('os.system', 'os.exec', 'os.posix_spawn', 'subprocess.Popen', 'socket.connect'):
            self.events.append(f'{event} {arguments}')


@pytest.fixture(scope='module')
def watch() -> Watch:
    return Watch()


def outcome(path: Path, watch: Watch) -> str:
    """'' if a file is imported and acts, else the sentence that it gets; all other ends are errors of the test."""
    watch.events.clear()
    watch.is_on = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            policy = zoo.import_policy(path)
            sentence = ''
            assert all(x.isfinite().all() for x in policy.model.parameters()), (
                'imported with numbers that are not finite'
            )
    except UserError as error:
        sentence = str(error)
    finally:
        watch.is_on = False
    assert watch.events == []
    return sentence


def assert_one_sentence(sentence: str, path: Path) -> None:
    assert '\n' not in sentence and len(sentence) < 600 and 'Traceback' not in sentence
    assert str(path) in sentence, 'it names the file'


@pytest.mark.long
@pytest.mark.parametrize('name', FILES)
def test_odd_file_is_imported_or_gets_a_sentence(name: str, tmp_path: Path, watch: Watch) -> None:
    read, odd_of_kind = FILES[name]
    content = read()
    path = tmp_path / name
    path.write_bytes(content)
    assert outcome(path, watch) == ''
    cases = dict(odd_bytes(content))
    if content[:2] == b'PK':
        cases |= dict(odd_members(content))
    if odd_of_kind is not None:
        cases |= dict(odd_of_kind(content))
    refused = 0
    for case, odd in cases.items():
        path.write_bytes(odd)
        try:
            sentence = outcome(path, watch)
        except Exception as error:
            raise AssertionError(f'{case}: {type(error).__name__}: {error}') from error
        if sentence:
            refused += 1
            assert_one_sentence(sentence, path)
    assert len(cases) >= 20 and refused >= 0.6 * len(cases)


@pytest.mark.long
def test_odd_folder_of_rllib_is_imported_or_gets_a_sentence(tmp_path: Path, watch: Watch) -> None:
    good = MODELS / 'rllib_discrete'
    files = sorted(path.relative_to(good) for path in good.rglob('*') if path.is_file())
    n_case = 0
    for file in files:
        for case, odd in [('gone', None), ('a folder', None), *odd_bytes((good / file).read_bytes(), 4)]:
            n_case += 1
            folder = tmp_path / 'checkpoint'
            shutil.copytree(good, folder)
            if odd is None:
                (folder / file).unlink()
                if case == 'a folder':
                    (folder / file).mkdir()
            else:
                (folder / file).write_bytes(odd)
            try:
                sentence = outcome(folder, watch)
            except Exception as error:
                raise AssertionError(f'{file} {case}: {type(error).__name__}: {error}') from error
            if sentence:
                assert_one_sentence(sentence, folder)
            shutil.rmtree(folder)
    assert n_case >= 100
