"""Inputs of networks, normalised by running statistics of their own: for networks that an option of an update trains."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.core.data import Obs, leaves, map_tensors
from zoo.core.ranks import Ranks
from zoo.core.spaces import WINDOW_MASK, Space, empty_obs, leaf_spaces, window_len
from zoo.model.inputs import DictInput, has_windows, make_input, real_entries
from zoo.rl_utils.normalizer import RunningMeanStd, WindowMeanStd


class NormalizedInput(nn.Module):
    """Base of networks that read observations normalised by running statistics, which `update_statistics` moves.

    Args: clip: bound of a normalised number.
    """

    def __init__(self, obs_space: Space, clip: float) -> None:
        super().__init__()
        self.input = make_input(obs_space)
        seen = self.input(empty_obs(obs_space, (1,)))
        if not isinstance(seen, dict):
            seen = {'': seen}
        n = window_len(obs_space)
        windows = {
            name for name, leaf in leaf_spaces(obs_space) if n and name != WINDOW_MASK and leaf.shape[:1] == (n,)
        }
        self.obs_statistics = nn.ModuleList(
            (WindowMeanStd if name in windows else RunningMeanStd)(tuple(x.shape[1:]), clip=clip)
            for name, x in seen.items()
        )

    def set_ranks(self, ranks: Ranks) -> None:
        """Lets the statistics include the observations of all ranks."""
        each: Any
        for each in self.obs_statistics:
            each.ranks = ranks

    def update_statistics(self, obs: Obs, weight: Tensor) -> None:
        """Updates the statistics with the observations [N, *O] that have a weight [N] above 0."""
        each: Any
        for each, stage, (_, x) in zip(self.obs_statistics, self._stages(), leaves(self.input(obs)), strict=True):
            if isinstance(each, WindowMeanStd):
                each.update_places(x, real_entries(stage, x, obs[WINDOW_MASK]), weight)
            else:
                each.update(x, weight)

    def encoder_inputs(self, obs: Obs) -> Any:
        """The inputs of the encoders, normalised; empty places of windows are 0."""
        statistics = iter(zip(self.obs_statistics, self._stages(), strict=True))

        def normalised(x: Tensor) -> Tensor:
            each, stage = next(statistics)
            if not has_windows(each):
                return each(x)
            return each(x).masked_fill(~real_entries(stage, x, obs[WINDOW_MASK]), 0.0)

        return map_tensors(normalised, self.input(obs))

    def _stages(self) -> list[nn.Module]:
        """The input stage of each leaf of an observation."""
        if isinstance(self.input, DictInput):
            return [stage for _, stage in self.input.named_stages()]
        return [self.input]
