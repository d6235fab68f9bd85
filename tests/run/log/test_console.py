"""The console in a notebook: one output, which is replaced, and only if a kernel runs."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from zoo.run.log.logger import LiveConsole, in_notebook, make_console


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


@pytest.mark.slow
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
    assert re.fullmatch(r'cartpole_ppo +9\d%  left 0:00:00 .* (3,[89]\d\d|4,0\d\d)/4,096 env steps', line)
