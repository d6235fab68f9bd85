"""The cache of compiled programs: one real compilation, what is read back of it, and what happens to broken files."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from zoo.backend import compile_cache
from zoo.backend.compile_cache import _key, cache_folder, find_or_compile
from zoo.backend.compile_worker import LIBRARY, CompilationError, Job
from zoo.backend.trace import CompiledFunction, Program, inductor, missing_compiler, trace

TABLE = torch.arange(6.0).view(2, 3).t()  # not contiguous
JOB = Job(
    'def forward(self, x):\n    return [x + self.a]\n',
    {'a': torch.tensor([1.0, 2.0])},
    [((2,), (1,), torch.float32)],
    {'cpp.threads': 1},
)
needs_compiler = pytest.mark.skipif(bool(missing_compiler(torch.device('cpu'))), reason='there is no C++ compiler')


def mixed(x: Tensor, count: Tensor, block: Tensor) -> list[Tensor]:
    """What graphs of ours have, and more: constants, tensors made inside and written to, inputs written to, inputs and
    views of them returned, several types, an operation that C++ code calls by its name."""
    made = torch.zeros(4)
    made[1:3] = x.sum()
    made += 1
    block.index_copy_(0, count.view(1), torch.tanh(x).unsqueeze(0))
    count.add_(1)
    found = torch.searchsorted(torch.tensor([0.0, 1.0]), x)
    return [x, x.t(), TABLE @ x, made, torch.full((2,), torch.inf), x > 0, found, x.to(torch.bfloat16)]


def inputs() -> list[Tensor]:
    return [torch.tensor([[1.0, 2.0], [-3.0, 0.5]]), torch.tensor(0), torch.zeros(3, 2, 2)]


def build() -> Program:
    with torch.no_grad():
        graph, used = trace(mixed, inputs())
        assert used == [0, 1, 2]
        return inductor(graph, inputs())


class Compiled(NamedTuple):
    program: Program
    folder: Path  # of torch's cache
    path: Path  # of the library


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """`mixed` compiled by a child that is started where a file has the name of a module, into a path with a space."""
    work, folder = tmp_path_factory.mktemp('work'), tmp_path_factory.mktemp('a cache')
    (work / 'random.py').write_text('raise SystemExit("the wrong random")')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv('TORCHINDUCTOR_CACHE_DIR', str(folder))
        program = build()
        (path,) = (folder / 'zoo').iterdir()
        assert list(folder.iterdir()) == [folder / 'zoo']
        yield Compiled(program, folder, path)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: Job, folder: Path) -> Path:
        raise AssertionError('a child was started')

    monkeypatch.setattr(compile_cache, 'compile_in_child', refuse)


@pytest.fixture
def copies(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A child that has the library at hand; the folders where it put it."""
    library, folders = compiled.path.read_bytes(), []

    def copy(job: Job, folder: Path) -> Path:
        folders.append(folder)
        (folder / LIBRARY).write_bytes(library)
        return folder / LIBRARY

    monkeypatch.setattr(compile_cache, 'compile_in_child', copy)
    return folders


def outcome(program: Any) -> list[Tensor]:
    """All that two calls return and write."""
    tensors = inputs()
    with torch.no_grad():
        first = [x.clone() for x in program(*tensors)]
        return [*first, *program(*tensors), *tensors]


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want, strict=True))


@needs_compiler
def test_program_does_what_the_function_does(compiled: Compiled) -> None:
    got, want = outcome(compiled.program), outcome(mixed)
    assert want[-2].item() == 2 and want[-1][2].count_nonzero() == 0 and want[-1][:2].count_nonzero() == 8
    assert [x.shape for x in got] == [x.shape for x in want] and [x.dtype for x in got] == [x.dtype for x in want]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)  # tanh by exp


@needs_compiler
def test_program_takes_a_list_too(compiled: Compiled) -> None:
    assert_same(outcome(lambda *tensors: compiled.program.run_list(list(tensors))), outcome(compiled.program))


@needs_compiler
def test_program_compiled_before_needs_no_compiler(
    compiled: Compiled, no_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('PATH', '')
    assert_same(outcome(build()), outcome(compiled.program))


@needs_compiler
@pytest.mark.parametrize(
    'damage',
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b'',
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    ],
    ids=['half', 'last', 'empty', 'bit'],
)
def test_broken_file_is_replaced(
    damage: Any, compiled: Compiled, copies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    path, data = tmp_path / 'zoo' / compiled.path.name, compiled.path.read_bytes()
    path.parent.mkdir()
    path.write_bytes(damage(data))
    assert_same(outcome(build()), outcome(compiled.program))
    assert path.read_bytes() == data and list(path.parent.iterdir()) == [path] and len(copies) == 1


@needs_compiler
def test_program_is_used_where_the_cache_cannot_be_written(
    compiled: Compiled, copies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'file').touch()
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path / 'file'))
    assert_same(outcome(build()), outcome(compiled.program))
    assert len(copies) == 1 and not copies[0].exists()


def test_what_cannot_be_moved_into_the_cache_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError('no room')

    made = tmp_path / LIBRARY
    made.write_bytes(b'library')
    monkeypatch.setattr(compile_cache.os, 'replace', fail)
    path = compile_cache._keep(made, tmp_path / 'cache', 'key')
    assert path.parent == tmp_path and path.read_bytes() == b'library' and not made.exists()
    assert list((tmp_path / 'cache').iterdir()) == []


@needs_compiler
@pytest.mark.skipif(not hasattr(os, 'getuid'), reason='has no owners of files')
@pytest.mark.parametrize('what', ['folder', 'file'])
def test_library_that_another_user_may_have_written_is_not_run(
    what: str, compiled: Compiled, copies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    path = tmp_path / 'zoo' / compiled.path.name
    path.parent.mkdir()
    path.write_bytes(compiled.path.read_bytes())
    build()
    assert not copies  # it is found
    (path if what == 'file' else path.parent).chmod(0o777)
    assert_same(outcome(build()), outcome(compiled.program))
    assert len(copies) == 1


def test_compiler_that_does_not_know_the_cpu_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compile_old(job: Job, folder: Path) -> Path:
        seen.append(job.options)
        raise CompilationError('g++: error: unrecognized option -mavx512f' if len(seen) == 1 else 'a.cpp:1: error: no')

    monkeypatch.setattr(compile_cache, 'compile_in_child', compile_old)
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    with pytest.raises(RuntimeError, match='^a.cpp:1: error: no$'):
        find_or_compile(JOB, 'g++')
    assert seen == [{'cpp.threads': 1, 'cpp.vec_isa_ok': True}, {'cpp.threads': 1}]


def test_function_whose_compilation_fails_says_why_and_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(job: Job, folder: Path) -> Path:
        raise RuntimeError('the compiler was ended by signal 9')

    monkeypatch.setattr(compile_cache, 'compile_in_child', fail)
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    with caplog.at_level(logging.WARNING):
        (double,) = CompiledFunction(lambda x: [2 * x], 'doubling')(torch.tensor([3.0]))
    assert double.item() == 6.0
    assert caplog.messages == [
        'doubling could not be compiled and runs as it stands: RuntimeError: the compiler was ended by signal 9'
    ]


def test_key_is_of_all_that_a_library_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    same = JOB._replace(constants={'a': torch.tensor([1.0, 2.0])}, options=dict(JOB.options))
    assert _key(same, 'g++') == _key(JOB, 'g++')
    others = [
        JOB._replace(code=JOB.code + '\n'),
        JOB._replace(constants={'a': torch.tensor([1.0, 3.0])}),
        JOB._replace(constants={'b': torch.tensor([1.0, 2.0])}),
        JOB._replace(constants={'a': torch.tensor([1.0, 2.0]).view(torch.int32)}),
        JOB._replace(constants={'a': torch.tensor([1.0, 2.0]).view(1, 2)}),
        JOB._replace(forms=[((2,), (2,), torch.float32)]),
        JOB._replace(options={'cpp.threads': 2}),
    ]
    keys = [_key(job, 'g++') for job in (JOB, *others)] + [_key(JOB, 'clang++')]
    for name, value in (('TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE', '64'), ('ATEN_CPU_CAPABILITY', 'avx2')):
        monkeypatch.setenv(name, value)
        keys.append(_key(JOB, 'g++'))
    monkeypatch.setattr(torch, '__version__', 'another')
    keys.append(_key(JOB, 'g++'))
    assert len(set(keys)) == len(keys) == 12


@pytest.mark.parametrize('user', ['anna', 'a/b:c', None])
def test_cache_folder_is_in_that_of_torch(user: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def getuser() -> str:
        if user is None:
            raise KeyError('uid not found')
        return user

    monkeypatch.setattr(getpass, 'getuser', getuser)
    monkeypatch.delenv('TORCHINDUCTOR_CACHE_DIR', raising=False)
    assert cache_folder() == Path(default_cache_dir()) / 'zoo'
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', '/some/where')
    assert cache_folder() == Path('/some/where/zoo')
