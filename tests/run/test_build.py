"""Building a run: the number of samples for which its threads are chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from zoo import POLICY_REGISTRY
from zoo.policy import PPOPolicy
from zoo.run import build
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.resources import Phase


class Silent(PPOPolicy):
    """PPO that tells the run another batch size than that of its config."""

    told: Any = None

    def _get_batch_size(self) -> Any:
        return self.told


@pytest.mark.parametrize(
    ('told', 'buffer', 'want'),
    [
        (32, {}, 32),
        (None, {}, 64),  # the whole rollout: 16 steps x 4 envs
        (None, {'type': 'replay', 'n_sample': 96}, 96),
        ({'policy': 32, 'value': None}, {'type': 'multi', 'policy': {'n_sample': 64}, 'value': {'n_sample': 160}}, 160),
    ],
)
def test_threads_are_chosen_for_all_samples_where_no_batch_size_is_given(
    told: Any, buffer: dict[str, Any], want: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[Phase, int]] = []

    def phase_threads(policy: Any, rows: dict[Phase, int], limit: int) -> Any:
        found.append(rows)
        return dict.fromkeys(('collect', 'learn', 'evaluate'), 1)

    monkeypatch.setattr(build, 'phase_threads', phase_threads)
    POLICY_REGISTRY.register('silent_parts_test', force=True)(
        type('Told', (Silent,), {'told': told, 'takes_separate_draws': True})
    )
    cfg = job_config(tmp_path, policy=dict(type='silent_parts_test'), buffer=buffer)
    SerialJob(resolve_config(cfg)).close()
    assert [rows['learn'] for rows in found] == [want]
