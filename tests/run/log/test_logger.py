"""The log of a run: files that stay valid, one host sync per write, a console for a terminal and a notebook."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pty
import re
import struct
import sys
import threading
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from torch.utils._python_dispatch import TorchDispatchMode

from tests.forked import run_python
from tests.run.log.json_rows import read_rows
from tests.run.processes import ROOT
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import LiveConsole, Logger, in_notebook, make_console

QUIET = LoggerConfig(console='off')
NO_TB = LoggerConfig(console='off', tensorboard=False)


def read_events(path: Path) -> list[Event]:
    """Returns the events of a TensorBoard file; each is stored as [length u64, its crc u32, event, its crc u32]."""
    data, at, events = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from('<Q', data, at)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from('<I', data, at + 8)[0] == masked_crc32c(data[at : at + 8])
        assert struct.unpack_from('<I', data, at + 12 + size)[0] == masked_crc32c(body)
        events.append(Event.FromString(body))
        at += 16 + size
    return events


def scalars(events: list[Event]) -> list[tuple[int, str, float]]:
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


# --- metrics.jsonl and TensorBoard ---


def test_write_appends_one_row_a_call_and_returns_numbers(tmp_path: Path) -> None:
    with Logger(tmp_path / 'a/run', NO_TB, 'exp', 100) as log:
        got = log.write(8, {'learn/loss': torch.tensor(0.5, requires_grad=True), 'learn/train_iter': 3, 'x': 0.1})
        log.write(16, {'n': torch.tensor(2**24 + 1), 'flag': torch.tensor(True)})
    assert got == {'learn/loss': 0.5, 'learn/train_iter': 3, 'x': 0.1}
    first, second = read_rows(tmp_path / 'a/run')
    assert list(first) == ['env_step', 'wall_s', 'learn/loss', 'learn/train_iter', 'x']
    assert (first['env_step'], first['learn/loss'], first['learn/train_iter'], first['x']) == (8, 0.5, 3, 0.1)
    assert (second['n'], second['flag']) == (16777217, 1)  # 2**24 + 1 is no float32
    assert 0 <= first['wall_s'] <= second['wall_s']


def test_write_not_finite_is_null_in_json_and_itself_elsewhere(tmp_path: Path) -> None:
    with Logger(tmp_path, QUIET, 'exp', 100) as log:
        got = log.write(8, {'a': torch.tensor(float('nan')), 'b': float('inf'), 'c': -float('inf'), 'd': 1.0})
    assert math.isnan(got['a']) and (got['b'], got['c']) == (math.inf, -math.inf)
    (row,) = read_rows(tmp_path)
    assert [row[key] for key in 'abcd'] == [None, None, None, 1.0]
    (file,) = (tmp_path / 'tb').iterdir()
    values = [value for _, _, value in scalars(read_events(file))]
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf, 1.0]


class CountCalls(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.long
def test_write_reads_all_tensors_in_one_host_sync(tmp_path: Path) -> None:
    metrics = {f'm{i}': torch.tensor(float(i)) for i in range(20)}
    with Logger(tmp_path, QUIET, 'exp', 100) as log, CountCalls() as counted:
        assert log.write(8, metrics) == {f'm{i}': float(i) for i in range(20)}
    assert counted.calls['stack'] == 1
    assert counted.calls['_local_scalar_dense'] == 0  # the operator of item() and float()


def test_write_tensor_with_dims_is_refused_with_its_name(tmp_path: Path) -> None:
    with Logger(tmp_path, NO_TB, 'exp', 100) as log:
        with pytest.raises(ValueError, match=r'metric learn/kl has shape \[3\]; pass a 0-dim tensor'):
            log.write(8, {'learn/kl': torch.zeros(3)})
    assert read_rows(tmp_path) == []


def test_tensorboard_file_reads_back(tmp_path: Path) -> None:
    with Logger(tmp_path, QUIET, 'exp', 100) as log:
        log.write(8, {'learn/loss': torch.tensor(0.5), 'train_iter': 3})
        log.write(16, {'learn/loss': torch.tensor(0.25)})
    (file,) = (tmp_path / 'tb').iterdir()
    assert 'tfevents' in file.name  # TensorBoard looks for this word
    events = read_events(file)
    assert events[0].file_version == 'brain.Event:2'
    assert scalars(events) == [(8, 'learn/loss', 0.5), (8, 'train_iter', 3.0), (16, 'learn/loss', 0.25)]
    log.close()
    assert read_events(file) == events  # a second close writes nothing


def test_rows_are_on_disk_before_close_and_alone_without_tensorboard(tmp_path: Path) -> None:
    log = Logger(tmp_path, NO_TB, 'exp', 100)
    log.write(8, {'a': 1})
    assert [row['a'] for row in read_rows(tmp_path)] == [1] and os.listdir(tmp_path) == ['metrics.jsonl']
    log.close()


# --- resume ---


def test_resume_cuts_what_was_logged_beyond_and_appends(tmp_path: Path) -> None:
    with Logger(tmp_path, QUIET, 'exp', 100) as log:
        for step in (8, 16, 24, 32):
            log.write(step, {'run': 1})
    with Logger(tmp_path, QUIET, 'exp', 100, start_env_step=16) as log:
        log.write(20, {'run': 2})
    assert [(row['env_step'], row['run']) for row in read_rows(tmp_path)] == [(8, 1), (16, 1), (20, 2)]
    first, second = sorted((tmp_path / 'tb').iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert len(scalars(read_events(first))) == 4
    start = read_events(second)[1]  # tells TensorBoard to drop the first file's steps from 17 on
    assert (start.step, start.session_log.status) == (17, SessionLog.START)
    assert scalars(read_events(second)) == [(20, 'run', 2.0)]


def test_resume_counts_seconds_on(tmp_path: Path) -> None:
    (tmp_path / 'metrics.jsonl').write_text('{"env_step": 8, "wall_s": 1000.5}\n{"env_step": 16, "wall_s": 2000}\n')
    with Logger(tmp_path, NO_TB, 'exp', 100, start_env_step=8) as log:
        log.write(9, {})
    assert 1000.5 <= read_rows(tmp_path)[1]['wall_s'] < 2000


@pytest.mark.parametrize('rest', ['{"env_step": 16, "wa', '{"env_step": 16, "wall_s": 2}', '\0\0\0\n', '[]\n', '{}\n'])
def test_resume_after_a_kill_drops_a_broken_row(tmp_path: Path, rest: str) -> None:
    (tmp_path / 'metrics.jsonl').write_text('{"env_step": 8, "wall_s": 1}\n' + rest)
    with Logger(tmp_path, NO_TB, 'exp', 100, start_env_step=50) as log:
        log.write(60, {})
    assert [row['env_step'] for row in read_rows(tmp_path)] == [8, 60]


# --- a full disk ---


FULL_DISK = """
import resource, sys
from zoo.run.log.logger import Logger, LoggerConfig
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
log = Logger(sys.argv[1], LoggerConfig(console='off'), 'exp', 10**6)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
for step in range(2000):
    log.write(step, {f'group/metric_{i}': float(i) for i in range(5)})
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.write(2000, {'room': 1})
log.close()
print('went on')
"""


@pytest.mark.long
def test_full_disk_warns_once_continues_and_leaves_valid_rows(tmp_path: Path) -> None:
    (tmp_path / 'full.py').write_text(FULL_DISK)
    result = run_python(tmp_path / 'full.py', tmp_path, PYTHONPATH=str(ROOT))
    assert (result.returncode, result.stdout) == (0, 'went on\n'), result.stderr
    assert sorted(result.stderr.splitlines()) == [
        'TensorBoard files cannot be written (File too large); training continues',
        'metrics.jsonl cannot be written (no room for a whole line); training continues',
    ]
    steps = [row['env_step'] for row in read_rows(tmp_path)]
    assert steps[-1] == 2000 and steps[:-1] == list(range(len(steps) - 1)) and 50 < len(steps) < 1000


# --- console ---

CALLS = [
    (12_000, 23.0625, None, None, 1000.0),
    (50_000, 90.5, 100.0, 200.0, 0.0),
    (99_000, 410.0, 450.04, 480.0, 500.0),
]
# time left: (100000 - 12000) / 1000 = 88 s; (100000 - 99000) / 500 = 2 s
FIRST = 'cartpole [v1]   12%  0:01:28 left  train 23.06  last -  best -  1,000/s  12,000/100,000 env steps'
MIDDLE = 'cartpole [v1]   50%  - left  train 90.5  last 100  best 200  0/s  50,000/100,000 env steps'
LAST = 'cartpole [v1]   99%  0:00:02 left  train 410  last 450  best 480  500/s  99,000/100,000 env steps'


@pytest.mark.parametrize(
    ('console', 'freq', 'lines'),
    [
        ('auto', 1e-9, [FIRST, MIDDLE, LAST]),
        ('plain', 3600.0, [FIRST, LAST]),
        ('off', 1e-9, []),
    ],
)
def test_console_without_terminal_writes_plain_lines_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], console: Any, freq: float, lines: list[str]
) -> None:
    cfg = LoggerConfig(tensorboard=False, console=console, console_freq=freq)
    with Logger(tmp_path, cfg, 'cartpole [v1]', 100_000) as log:
        for call in CALLS:
            log.progress(*call)
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ('', lines)


@pytest.mark.parametrize(
    ('width', 'line'),
    [
        (110, b'0:01:28 left  train 23.06  last -  best -  1,000/s  12,000/100,000 env steps'),
        (80, b'0:01:28 left  train 23.06  last -  12,000/100,000 env steps'),  # 79 characters with name and share
        (60, b'train 23.06  last -  12,000/100,000'),
    ],
)
def test_console_on_terminal_redraws_one_line_that_fits(
    width: int, line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master, slave = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux raises it when the other end is closed
            while chunk := os.read(master, 4096):
                shown.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    for name, value in (('TERM', 'xterm'), ('COLUMNS', str(width))):
        monkeypatch.setenv(name, value)
    with os.fdopen(slave, 'w') as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', terminal)
        cfg = LoggerConfig(tensorboard=False, console='auto', console_freq=1e-9)
        with Logger(tmp_path, cfg, 'cartpole [v1]', 100_000) as log:
            handler = logging.StreamHandler()
            for call in CALLS:
                log.progress(*call)
                handler.handle(logging.makeLogRecord({'msg': 'take care'}))
            print('printed')
    reader.join()
    os.close(master)
    text = b''.join(shown)
    assert capsys.readouterr().out == 'printed\n'
    for part in (b'cartpole [v1]', line, b'99%', b'take care\r\n', b'\x1b[2K'):  # \x1b[2K erases the line
        assert part in text
    assert text.rfind(b'\x1b[?25h') > text.rfind(b'\x1b[?25l')  # the cursor is visible
    assert text.endswith((b'\r\n', b'\x1b[?25h'))


def test_console_reader_gone_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    cfg = LoggerConfig(tensorboard=False, console='plain', console_freq=1e-9)
    with os.fdopen(write_end, 'w') as closed, monkeypatch.context() as patch:
        patch.setattr(sys, 'stderr', closed)
        with Logger(tmp_path, cfg, 'exp', 100_000) as log:
            for call in CALLS:
                log.progress(*call)
            log.write(99_000, {'a': 1})
        with contextlib.suppress(BrokenPipeError):
            closed.close()
    assert [row['env_step'] for row in read_rows(tmp_path)] == [99_000]


@pytest.mark.parametrize('bad', [{'freq': 0}, {'console': 'loud'}, {'console_freq': 0.0}, {'root': ''}, {'tb': True}])
def test_logger_config_bad_value_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LoggerConfig(**bad)


def test_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / 'precious').write_text('text')
    run = tmp_path / 'run'
    run.mkdir()
    (run / 'metrics.jsonl').symlink_to(tmp_path / 'precious')
    with pytest.raises(OSError, match='symbolic links'):
        Logger(run, LoggerConfig(console='off'), 'test', 100)
    assert (tmp_path / 'precious').read_text() == 'text'


# --- the console in a notebook ---


class Notebook:
    """Replacement for IPython in a kernel: keeps the outputs of a cell, each as a list of the texts that it has shown."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Notebook:
        assert raw and display_id
        self.outputs.append([data['text/plain']])
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.outputs[-1].append(data['text/plain'])


def enter(monkeypatch: pytest.MonkeyPatch, shell: object) -> Notebook:
    """Puts a replacement for IPython with this shell into sys.modules."""
    notebook = Notebook()
    ipython, display = types.ModuleType('IPython'), types.ModuleType('IPython.display')
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = notebook.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, 'IPython', ipython)
    monkeypatch.setitem(sys.modules, 'IPython.display', display)
    return notebook


KERNEL = types.SimpleNamespace(kernel=object())


def test_in_notebook_is_true_in_a_kernel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, 'IPython', raising=False)
    assert not in_notebook()
    for shell, wanted in ((None, False), (types.SimpleNamespace(), False), (KERNEL, True)):
        enter(monkeypatch, shell)
        assert in_notebook() is wanted


def test_notebook_console_replaces_one_output_and_ends_with_the_last_text(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = enter(monkeypatch, KERNEL)
    console = make_console('auto', 1000.0, 'pole', 10)
    assert console is not None
    for text in ('10%', '20%', '30%'):
        console.show(1, text)
    console.close()
    # the first text at once, none within the 1,000 s after it, the last one at the end
    assert notebook.outputs == [['pole  ', 'pole  10%', 'pole  30%']]


def test_notebook_console_closed_twice_draws_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = enter(monkeypatch, KERNEL)
    console = make_console('live', 1000.0, 'pole', 10)
    assert console is not None
    console.show(1, 'all')
    console.close()
    console.close()
    assert notebook.outputs == [['pole  ', 'pole  all']]


def test_console_in_a_notebook_can_still_be_plain_or_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = enter(monkeypatch, KERNEL)
    console = make_console('plain', None, 'pole', 10)
    assert console is not None
    console.show(1, '10%')
    assert capsys.readouterr().err == 'pole  10%\n'
    assert make_console('off', None, 'pole', 10) is None
    assert notebook.outputs == []


def test_console_outside_of_a_notebook_is_live_on_a_terminal_and_else_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, 'IPython', raising=False)
    kinds = {}
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, 'isatty', lambda is_terminal=is_terminal: is_terminal, raising=False)
        console = make_console('auto', None, 'pole', 10)
        kinds[is_terminal] = isinstance(console, LiveConsole)
        assert console is not None
        console.close()
    assert kinds == {True: True, False: False}


@pytest.mark.long
def test_a_run_in_a_real_kernel_leaves_one_line_about_its_last_rollout(tmp_path: Path) -> None:
    pytest.importorskip('ipykernel')
    nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
    code = "import zoo\nzoo.serial_pipeline('cartpole_ppo', max_env_step=4096);"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, resources={'metadata': {'path': str(tmp_path)}}).execute()
    shown = [output for output in notebook.cells[0].outputs if output.output_type == 'display_data']
    streams = ''.join(output.text for output in notebook.cells[0].outputs if output.output_type == 'stream')
    assert len(shown) == 1 and 'env steps' not in streams
    line = shown[0].data['text/plain']  # 4 x 1,024 rows, of which some only reset an env
    assert re.fullmatch(r'cartpole_ppo +9\d%  0:00:00 left .* (3,[89]\d\d|4,0\d\d)/4,096 env steps', line)
