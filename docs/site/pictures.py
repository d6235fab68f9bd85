"""The pictures of README and of the site's home, drawn from benchmarks/results/ and from a trained agent.

python docs/site/pictures.py                 writes docs/images/speed*.svg and lander*.svg
python docs/site/pictures.py RUN             and docs/images/agent.gif, of a run of lunarlander_ppg
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import imageio_ffmpeg
from curves import METRIC, RESULTS, ROOT, SHOWN, record_paths, run_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zoo.tools.results.plot import COLORS, PAPER, Theme, figure, save

sys.path.insert(0, str(ROOT / 'benchmarks'))
from speed_tables import by_label, fastest_reference, median_of  # noqa: E402
from speed_works import WORKS  # noqa: E402

IMAGES = ROOT / 'docs' / 'images'
THEMES: tuple[Theme, ...] = ('light', 'dark')
BARS = {
    'cartpole_8x128': 'CartPole, 8 x 128',
    'pendulum_1x2048': 'Pendulum, 1 x 2048',
    'halfcheetah_1x2048': 'HalfCheetah, 1 x 2048',
    'pong_8x128': 'Pong (images), 8 x 128',
}


def speed(theme: Theme) -> Figure:
    """Env steps per second of zoo over those of the fastest other library, a bar for each work."""
    works, ratios = json.loads((RESULTS / 'speed.json').read_text())['works'], {}
    for work in (work for work in WORKS if work.name in BARS):
        groups = by_label(works[work.name]['runs'])
        reference = fastest_reference(work, groups)
        assert reference is not None, f'{work.name} has no other library; run benchmarks/speed.py --peers sb3 cleanrl'
        ratios[BARS[work.name]] = median_of(groups['zoo best'], 'env_step_per_s') / reference[1]
    paper = PAPER[theme]
    drawn = Figure(figsize=(7.2, 2.8), dpi=100, layout='constrained', facecolor=paper['paper'])
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot(facecolor=paper['paper'])
    bars = axes.barh(list(ratios), list(ratios.values()), color=COLORS[theme][0], height=0.62)
    words = [f'{ratio:.1f} times' for ratio in ratios.values()]
    axes.bar_label(bars, words, padding=4, color=paper['ink'], fontsize=11)
    axes.axvline(1, color=paper['ink'], linewidth=1)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(ratios.values()))
    drawn.suptitle(
        'Env steps per second of training (envs x steps of a rollout)',
        x=0.01,
        ha='left',
        color=paper['ink'],
        fontsize=12,
    )
    axes.set_xticks([1], ['1: the faster of stable-baselines3 and CleanRL'], ha='left')
    axes.tick_params(colors=paper['ink'], length=0, labelsize=11)
    axes.spines[:].set_visible(False)
    return drawn


def lander(theme: Theme) -> Figure:
    """Curves of PPG and PPO on LunarLander."""
    shown = SHOWN['ppg']
    groups = {label: [run_of(path) for path in record_paths(shown.folder, line)] for label, line in shown.lines.items()}
    return figure(groups, METRIC, size=(7.2, 3.6), theme=theme, title='LunarLander-v3: greedy return while training')


def agent(run: str, path: Path) -> None:
    """A small film of one episode. Args: run: a run folder."""
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / 'agent.mp4'
        subprocess.run(
            [sys.executable, '-m', 'zoo', 'video', run, '--best', '--seed', '3', '-o', str(film)], check=True
        )
        change = (
            'fps=20,scale=360:-1:flags=lanczos,split[a][b];[a]palettegen=max_colors=48[p];[b][p]paletteuse=dither=none'
        )
        ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), '-v', 'error', '-y', '-i', str(film), '-filter_complex', change]
        subprocess.run([*ffmpeg, '-loop', '0', str(path)], check=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for theme in THEMES:
        end = '' if theme == 'light' else f'_{theme}'
        save(speed(theme), IMAGES / f'speed{end}.svg')
        save(lander(theme), IMAGES / f'lander{end}.svg')
    for run in sys.argv[1:2]:
        agent(run, IMAGES / 'agent.gif')


if __name__ == '__main__':
    main()
