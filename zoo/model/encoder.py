"""Builds the ends of a network: the input stage and encoder that fit an observation space, the policy head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from zoo.core.errors import UserError
from zoo.core.spaces import Box, Space, is_image
from zoo.model.cnn import ImpalaCNN, NatureCNN, Pixels, Precision, make_cnn
from zoo.model.mlp import MLP, Activation, OneHot
from zoo.rl_utils.distribution import make_dist
from zoo.rl_utils.normalizer import RunningMeanStd

EncoderName = Literal['auto', 'mlp', 'nature', 'impala']


def make_input(obs_space: Space, obs_norm: bool = False) -> nn.Module:
    """The first stage of a model, shared by its encoders: one-hot, normalisation, channels of images first, or nothing.

    Images of bytes stay bytes, from 0 to 255: `make_encoder`'s networks scale them, one of your own has to.
    Raises: UserError if the observations are no index, vector or image, or obs_norm is asked for images.
    """
    if not isinstance(obs_space, Box):
        return OneHot(obs_space.n)  # of unit scale: nothing to normalise
    if is_image(obs_space):
        if obs_norm:
            raise UserError(
                f'policy.model.obs_norm is true but the observations are images of shape {obs_space.shape},'
                ' whose pixels are scaled already; set policy.model.obs_norm=false'
            )
        return Pixels(obs_space)
    if len(obs_space.shape) != 1:
        raise UserError(
            'an encoder takes observations of shape [O], [H, W, C] or [C, H, W] but the space has '
            f'shape {obs_space.shape}; flatten them in the env'
        )
    return RunningMeanStd(obs_space.shape) if obs_norm else nn.Identity()


def make_encoder(
    obs_space: Space,
    encoder: EncoderName = 'auto',
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = 'tanh',
    precision: Precision = 'fp32',
) -> tuple[MLP | NatureCNN | ImpalaCNN, int]:
    """A network from what `make_input(obs_space)` gives to features [..., F], and F; leading dimensions are kept.

    A model of one's own has `self.input = make_input(obs_space)` and `self.encoder, n = make_encoder(obs_space)`, and
    reads `self.encoder(self.input(obs))`.

    Args:
      encoder: 'auto' is 'mlp' for vectors and indices, for images what `make_cnn` chooses.
      hidden_sizes, activation: of the MLP; precision: of a network for images.
    Raises: UserError if the encoder is not for such observations.
    """
    if is_image(obs_space):
        assert isinstance(obs_space, Box)
        if encoder == 'mlp':
            raise UserError(
                f"policy.model.encoder is 'mlp' but the observations are images of shape {obs_space.shape};"
                " use 'auto', 'nature' or 'impala', or flatten them in the env"
            )
        cnn = make_cnn(obs_space, encoder, precision)
        return cnn, cnn.n_feature
    n_in = obs_space.shape[0] if isinstance(obs_space, Box) else obs_space.n
    if encoder not in ('auto', 'mlp'):
        what = f'vectors of {n_in} numbers' if isinstance(obs_space, Box) else f'one of {n_in} indices'
        raise UserError(
            f"policy.model.encoder is {encoder!r} but the observations are {what}, no images; use 'auto' or 'mlp'"
        )
    mlp = MLP(n_in, hidden_sizes, activation)
    return mlp, mlp.n_feature


def make_policy_head(
    n_feature: int, action_space: Space, state_dependent_std: bool = False, log_std_init: float = 0.0
) -> nn.Module:
    """The last layer of a policy: features [..., n_feature] -> logit [..., P], as the action space asks for.

    Args: state_dependent_std, log_std_init: where actions are real numbers, see `ActorCriticConfig`.
    """
    options = {'state_dependent_std': state_dependent_std, 'log_std_init': log_std_init}
    return make_dist(action_space).make_head(n_feature, options)
