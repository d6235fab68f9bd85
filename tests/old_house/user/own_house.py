"""User code for commit 7e7fb52: an env, a callback, a stop rule and a sink, each written as the pages say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from zoo import Callback, Sink, StopRule


class Walk(gymnasium.Env):
    """A walk on a line with a Dict observation; the action is one masked choice, or a Tuple without a mask if `is_mixed`."""

    def __init__(self, size: int = 5, is_mixed: bool = False) -> None:
        place, kind = Box(-1.0, 1.0, (2,), np.float32), Discrete(3)
        steps = {} if is_mixed else {'action_mask': Box(0, 1, (3,), np.int8)}
        self.observation_space = Dict({'place': place, 'kind': kind, **steps})
        self.action_space = Tuple((Discrete(3), Box(-1.0, 1.0, (1,), np.float32))) if is_mixed else Discrete(3)
        self.size, self.is_mixed, self.place, self.n_step = size, is_mixed, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.n_step = int(self.np_random.integers(self.size)), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choice, extra = action if self.is_mixed else (action, [0.0])
        self.place = min(max(self.place + int(choice) - 1, 0), self.size - 1)
        self.n_step += 1
        is_there = self.place == self.size - 1
        return (
            self._obs(),
            is_there - 0.01 * float(extra[0]) ** 2,
            is_there,
            self.n_step >= 6,
            {'is_success': is_there},
        )

    def _obs(self) -> dict[str, Any]:
        place = np.array([self.place / self.size, self.n_step / 6], np.float32)
        mask = {} if self.is_mixed else {'action_mask': np.array([self.place > 0, 1, 1], np.int8)}
        return {'place': place, 'kind': self.place % 3, **mask}


class Diary(Callback):
    """Records the arguments of each event in diary.json in the run folder."""

    def on_start(self, job: Any) -> None:
        self.lines: list[Any] = [['start', job.env_step, job.train_iter, job.cfg.exp_name, job.policy.cfg.type]]

    def on_rollout(self, job: Any, rollout: Any) -> None:
        self.lines.append(['rollout', job.env_step, sorted(rollout.data)])

    def on_samples(self, job: Any, samples: Any) -> None:
        self.lines.append(['samples', sorted(samples)])

    def on_gradient(self, job: Any, optimizers: Any, loss: Any) -> None:
        self.lines.append(['gradient', len(optimizers), [len(x.grad) for x in optimizers], list(loss.shape)])

    def on_update(self, job: Any, metrics: Any) -> dict[str, float]:
        self.lines.append(['update', sorted(metrics)])
        return {'diary_line': float(len(self.lines))}

    def on_evaluate(self, job: Any, evaluation: Any) -> None:
        self.lines.append(['evaluate', job.env_step, len(evaluation.returns)])

    def on_checkpoint(self, job: Any, path: Path) -> None:
        self.lines.append(['checkpoint', path.name])

    def on_end(self, job: Any, result: Any) -> None:
        self.lines.append(['end', result.env_step, result.train_iter])
        Path(job.run_dir, 'diary.json').write_text(json.dumps(self.lines, indent=0))


class Rounds(StopRule):
    """Ends the run after n rounds, including those before a resume."""

    def __init__(self, *, n: int = 100) -> None:
        self.n, self.n_seen = n, 0

    def reason(self, job: Any) -> str | None:
        self.n_seen += 1
        return f'{self.n} rounds are over' if self.n_seen > self.n else None

    def state_dict(self) -> dict[str, Any]:
        return {'n_seen': self.n_seen}

    def load_state_dict(self, state: Any) -> None:
        self.n_seen = state['n_seen']


class Steps(Sink):
    """Writes the env step of each log line to steps.txt in the run folder, one a line."""

    def __init__(self, *, name: str = 'steps.txt') -> None:
        self.name = name

    def open(self, cfg: Any, run_dir: Path) -> None:
        self.file = open(run_dir / self.name, 'a')

    def write(self, env_step: int, metrics: Any) -> None:
        self.file.write(f'{env_step}\n')

    def close(self) -> None:
        self.file.close()
