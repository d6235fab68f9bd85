"""Encoders, the networks over an observation: their choice by name, by section, or by the space; those for vectors and Dicts.

An encoder is a class registered in ENCODER_REGISTRY, constructed as `cls(cfg, space)`: `cfg` has the fields of its class
attribute `config`, a Section. Its objects have the attributes n_feature and value_gain, the gain of a value head on them.
They take the output of `make_input(space)` and keep leading dimensions. A class method `fits(space) -> bool` tells whether
the class is for such observations; without this method it is for all. One for a Dict gets {name of the leaf, its dotted path: its
tensor}.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getattr_static
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import AfterValidator, Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import relu

from zoo.config import components
from zoo.config.section import LEFT_OUT, ConfigError, Filled, Section, is_class, plain
from zoo.core.errors import UserError, show_error, unknown_name
from zoo.core.registry import ENCODER_REGISTRY
from zoo.core.spaces import (
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    leaf_names,
    leaf_spaces,
    leaves_by_path,
)
from zoo.model.images import Precision, flat_pixels, holds_images, image_shape
from zoo.model.inputs import input_width, module_name, without_mask
from zoo.model.layers import Activation, LastNorm, Layers, Width
from zoo.rl_utils.distribution import make_dist
from zoo.rl_utils.init import orthogonal

PATH = 'policy.model.encoder'
SMALL = 40  # images with a side below it need no network as large as 'impala'
SMALL_CNN = '{type: cnn, channels: [16, 32], kernels: [3, 3], strides: [2, 2], hidden_size: 128}'
NATURE_SIZE = 80
IMPALA_SIZE = 8
"""Least sides of images for which 'auto' chooses these; the strides of 'nature', made for 84x84, lose details of smaller ones."""


class Inherited(NamedTuple):
    """Fields of `policy.model` that an encoder inherits if its own field of that name is null."""

    hidden_sizes: Sequence[int] = (64, 64)
    activation: Activation = 'tanh'
    precision: Precision = 'fp32'
    layer_norm: bool = False

    @classmethod
    def of(cls, model: Section) -> Inherited:
        """Those of a resolved section `policy.model`."""
        return cls(*(getattr(model, name) for name in cls._fields))


def checked_spec(spec: object, path: str = PATH) -> Any:
    """A name unchanged, or {type: name, its fields} with all fields. Raises: ConfigError that names the keys below `path`."""
    if spec in ('auto', {'type': 'auto'}):
        return 'auto'
    section = section_of(spec, path)
    if isinstance(spec, str):
        return spec
    return plain(section)


EncoderSpec = Annotated[str | dict[str, Any], AfterValidator(lambda spec: checked_spec(spec))]
"""An encoder in a config: 'auto', a registered name, or {type: name, its fields}."""


def section_of(spec: object, path: str) -> Any:
    """The section of an encoder, with the field `type`. Raises: ConfigError."""
    if not isinstance(spec, str | dict):
        raise ConfigError(f'{path} is {spec!r} but must be the name of an encoder, or {{type: its name, its fields}}.')
    name: Any = spec
    if isinstance(spec, dict):
        name = spec.get('type')
    if not isinstance(name, str):
        wrong = f'{path} has no type'
        if 'type' in spec:
            wrong = f'{path}.type is {name!r}'
        raise ConfigError(f'{wrong} but must name an encoder; use one of {", ".join(ENCODER_REGISTRY.names())}.')
    if name not in ENCODER_REGISTRY:
        raise ConfigError(unknown_name('encoder', name, ['auto', *ENCODER_REGISTRY.names()]))
    if not is_class(getattr(ENCODER_REGISTRY.get(name), 'config', None), Section):
        raise ConfigError(
            f'encoder {name!r} of {ENCODER_REGISTRY.where(name)} has no class attribute `config`; '
            'give it the Section class that declares its fields.'
        )
    return components.section_of(ENCODER_REGISTRY, spec, path)


class MLPConfig(Section):
    """Encoder 'mlp': fully connected layers over vectors, indices, or the pixels of images."""

    hidden_sizes: Filled[list[Width]] = Field(
        LEFT_OUT, min_length=1, description='widths of the layers; null: policy.model.hidden_sizes'
    )
    activation: Filled[Activation] = Field(LEFT_OUT, description='after each layer; null: policy.model.activation')
    layer_norm: Filled[bool] = Field(
        LEFT_OUT, description='layer normalisation before each activation; null: policy.model.layer_norm'
    )
    last_norm: LastNorm = Field(
        'same',
        description="normalisation before the last activation: 'same' as before the others, 'plain': without a gain and an "
        "offset to learn, 'none'",
    )


@ENCODER_REGISTRY.register('mlp')
class MLP(Layers):
    """For vectors and indices: fully connected layers of the widths policy.model.hidden_sizes.

    The output of `make_input` for any leaf -> [..., hidden_sizes[-1]].
    """

    config: ClassVar[type[Section]] = MLPConfig

    def __init__(self, cfg: MLPConfig, space: Leaf) -> None:
        super().__init__(input_width(space), cfg.hidden_sizes, cfg.activation, cfg.layer_norm, cfg.last_norm)
        self._of_pixels = holds_images(space)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf)


class FlatConfig(Section):
    """Encoder 'flat': no network, the observations themselves."""


@ENCODER_REGISTRY.register('flat')
class Flat(nn.Module):
    """No layers: the observations as one vector, so that the policy is linear in them.

    The output of `make_input` for any leaf -> [..., n].
    """

    config: ClassVar[type[Section]] = FlatConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: FlatConfig, space: Leaf) -> None:
        super().__init__()
        self.n_feature = input_width(space)
        self._of_pixels = holds_images(space)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf)

    def forward(self, x: Tensor) -> Tensor:
        if self._of_pixels:
            return flat_pixels(x)
        return x


class SimbaConfig(Section):
    """Encoder 'simba'; use it with policy.model.obs_norm=true."""

    hidden_size: int = Field(
        128, ge=1, le=1_000_000, description='width of the blocks, and of the features; 128 to 512'
    )
    n_block: int = Field(1, ge=1, le=1_000, description='residual blocks; 1 or 2')


@ENCODER_REGISTRY.register('simba')
class Simba(nn.Module):
    """For vectors: a residual network with layer normalisation.

    [..., n] -> [..., hidden_size]: a linear layer, n_block residual blocks, layer normalisation.

    Source: Lee et al. 2024, arXiv:2410.09754, sec. 4, and the authors' code for the initial weights. The defaults are
    those of its actor; its critic has 2 blocks of 512. Its normalisation of observations is `obs_norm`.
    """

    config: ClassVar[type[Section]] = SimbaConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: SimbaConfig, space: Leaf) -> None:
        super().__init__()
        self.n_feature: int = cfg.hidden_size
        self.embed = orthogonal(nn.Linear(input_width(space), cfg.hidden_size), 1.0)
        self.blocks = nn.ModuleList([SimbaBlock(cfg.hidden_size) for _ in range(cfg.n_block)])
        self.norm = nn.LayerNorm(cfg.hidden_size)

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Leaf) and not holds_images(space)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class SimbaBlock(nn.Module):
    """x + second(relu(first(layer_norm(x)))), four times as wide inside."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.first = nn.Linear(n, 4 * n)
        self.second = nn.Linear(4 * n, n)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(relu(self.first(self.norm(x))))


class MultiEncoderConfig(Section):
    """Encoder 'multi' for observations that are a Dict."""

    encoders: dict[str, Any] = Field(
        {},
        description="encoders of single entries by name, of nested ones by dotted name; the others: 'nature' or "
        "'impala' for images, 'flat' for the rest",
    )
    join: str | dict[str, Any] | None = Field(
        'mlp', description='encoder of all their features side by side; null: these are the features'
    )
    hidden_sizes: Filled[list[Width]] = Field(
        LEFT_OUT, min_length=1, description='of the encoders in it; null: policy.model.hidden_sizes'
    )
    activation: Filled[Activation] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.activation')
    layer_norm: Filled[bool] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.layer_norm')
    precision: Filled[Precision] = Field(LEFT_OUT, description='of the encoders in it; null: policy.model.precision')

    @field_validator('encoders')
    @classmethod
    def _check_encoders(cls, encoders: dict[str, Any]) -> dict[str, Any]:
        return {name: checked_spec(spec, f'{PATH}.encoders.{name}') for name, spec in encoders.items()}

    @field_validator('join')
    @classmethod
    def _check_join(cls, spec: Any) -> Any:
        if spec is None:
            return None
        return checked_spec(spec, f'{PATH}.join')


@ENCODER_REGISTRY.register('multi')
class MultiEncoder(nn.Module):
    """For observations of several parts, as in a Dict: an encoder for each part, whose outputs are joined.

    {name of the leaf: output of `make_input` for it} -> [..., F].

    Each leaf has an encoder; the concatenated features of all go through one more encoder. So vectors are treated as if they
    were one, and images join them after convolutions.
    """

    config: ClassVar[type[Section]] = MultiEncoderConfig

    def __init__(self, cfg: MultiEncoderConfig, space: Dict) -> None:
        super().__init__()
        inherited = Inherited.of(cfg)
        names = leaf_names(space)
        self._names = list(names.values())
        self.parts = nn.ModuleDict()
        for i, (path, leaf) in enumerate(leaves_by_path(space).items()):
            name = names[path]
            spec = cfg.encoders.get(name, 'auto')
            if spec == 'auto' and auto_name(leaf) == 'mlp':
                spec = 'flat'
            self.parts[module_name(i, path)] = build_encoder(
                spec, leaf, inherited, f'{PATH}.encoders.{name}', f'the entry {name!r} has'
            )
        parts: list[Any] = list(self.parts.values())
        n = sum(part.n_feature for part in parts)
        self.join: Any = None
        if cfg.join is not None:
            self.join = build_encoder(cfg.join, vectors(n), inherited, f'{PATH}.join', 'the joined features are')
        self.n_feature: int
        if self.join is None:
            self.n_feature = n
        else:
            self.n_feature = self.join.n_feature
        self.value_gain: float = min(part.value_gain for part in (parts if self.join is None else [self.join]))

    @property
    def entry_names(self) -> list[str]:
        """Names of the leaves whose features are joined, in their order side by side."""
        return self._names

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Dict)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        parts = [part(x[name]) for name, part in zip(self._names, self.parts.values(), strict=True)]
        if len(parts) == 1:
            feature = parts[0]
        else:
            feature = torch.cat(parts, -1)
        if self.join is None:
            return feature
        return self.join(feature)


def make_encoder(
    obs_space: Space,
    encoder: str | dict[str, Any] = 'auto',
    hidden_sizes: Sequence[int] = (64, 64),
    activation: Activation = 'tanh',
    precision: Precision = 'fp32',
    layer_norm: bool = False,
) -> tuple[Any, int]:
    """A network from the output of `make_input(obs_space)` to features [..., F], and F; leading dimensions are kept.

    Your own model has `self.input = make_input(obs_space)` and `self.encoder, n = make_encoder(obs_space)`, and
    computes `self.encoder(self.input(obs))`.

    Args:
      encoder: a registered name, or {'type': name, its fields}. 'auto' is 'mlp' for vectors and indices, a CNN for
        images, 'multi' for a Dict, whose action mask is not seen.
      hidden_sizes, activation, layer_norm: of an MLP; precision: of a network for images.
    Raises: UserError if the encoder is not for such observations.
    """
    inherited = Inherited(hidden_sizes, activation, precision, layer_norm)
    check_entries(encoder, obs_space)
    network = build_encoder(encoder, obs_space, inherited)
    return network, network.n_feature


def build_encoder(
    spec: str | dict[str, Any],
    space: Space,
    given: Inherited,
    path: str = PATH,
    input_name: str = 'the observations are',
) -> Any:
    """Builds the network of a spec for a space; see `make_encoder`. path (of the spec) and input_name are for errors."""
    if isinstance(space, Dict):
        space = without_mask(space)
    if spec == 'auto':
        spec = auto_name(space)
    section = section_of(spec, path)
    cls = ENCODER_REGISTRY.get(section.type)
    if _asked_fits(cls, section.type, space):
        inherited = {name: x for name, x in given._asdict().items() if getattr(section, name, '') is None}
        try:
            network = cls(section.model_copy(update=inherited), space)
        except Exception as error:
            if hasattr(cls, 'fits') or not isinstance(space, Dict):
                raise
            raise UserError(
                f'encoder {section.type!r} has no fits(), so it is made for {_what(space)}, where it raised '
                f'{show_error(error)}; let fits() return False for a Dict: zoo then uses it for the entries that it fits, as '
                f'{_of_entry(section.type, space)}'
            ) from error
        return _checked(network, section.type)
    if isinstance(space, Dict):
        return build_encoder(_spread(cls, spec, space, path), space, given, path)
    names = [name for name in ENCODER_REGISTRY.names() if _fits(ENCODER_REGISTRY.get(name), space)]
    raise UserError(
        f"{path} is {section.type!r}{_taken(cls)} but {input_name} {_what(space)}; use one of 'auto', "
        f'{", ".join(map(repr, names))}'
    )


def auto_name(space: Space) -> str:
    """The encoder that 'auto' means: for large images 'nature' (Atari), for tiny ones 'mlp', else 'impala' (Procgen)."""
    if isinstance(space, Dict):
        return 'multi'
    if not (isinstance(space, Box) and holds_images(space)):
        return 'mlp'
    image = image_shape(space)
    size = min(image.height, image.width)
    if size >= NATURE_SIZE:
        return 'nature'
    if size >= IMPALA_SIZE:
        return 'impala'
    return 'mlp'


def slow_for_small_images(spec: object, space: Space) -> str:
    """A sentence about small images for which 'auto' chooses 'impala', and a faster encoder; '' if there are none."""
    if spec != 'auto':
        return ''
    leaves = leaf_spaces(without_mask(space) if isinstance(space, Dict) else space)
    for path, leaf in leaves:
        if isinstance(leaf, Box) and auto_name(leaf) == 'impala':
            image = image_shape(leaf)
            if min(image.height, image.width) < SMALL:
                entry = ''
                if path:
                    entry = f' {path!r}'
                return (
                    f'the images{entry} of {image.height}x{image.width} get the encoder impala, which was made for 64x64; '
                    f"a smaller one trains several times as fast: '{PATH}={SMALL_CNN}'"
                )
    return ''


def check_entries(spec: object, space: Space) -> None:
    """Raises: UserError if a spec of 'multi' has encoders for entries that the observations lack."""
    names = None
    if isinstance(spec, dict):
        names = spec.get('encoders')
    if not names:
        return
    if not isinstance(space, Dict):
        raise UserError(
            f'{PATH}.encoders names {", ".join(map(repr, names))} but the observations are {_what(space)}, which have '
            "no entries; use policy.model.encoder 'auto', or name the encoder itself"
        )
    known = [path for path, _ in leaf_spaces(space)]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UserError(
            f'{PATH}.encoders names {", ".join(map(repr, unknown))} but the entries of the observations are '
            f'{", ".join(map(repr, known))}; use some of these names'
        )


def takes_dicts_alone(spec: object) -> bool:
    """Whether a spec is of an encoder that takes a Dict but no single leaf."""
    if spec == 'auto':
        return False
    cls = ENCODER_REGISTRY.get(section_of(spec, PATH).type)
    return not _fits(cls, vectors(1)) and _fits(cls, Dict({'x': vectors(1)}))


def vectors(n: int) -> Box:
    """The space of vectors of n numbers."""
    return Box(np.full(n, -np.inf), np.full(n, np.inf))


def _spread(cls: type, spec: str | dict[str, Any], space: Dict, path: str) -> dict[str, Any]:
    """A spec of 'multi' with an encoder of single leaves: as `join` if it takes vectors, else for all leaves that it fits."""
    if _fits(cls, vectors(1)):
        return {'type': 'multi', 'join': spec}
    encoders = {name: spec for name, leaf in leaf_spaces(space) if _asked_fits(cls, section_of(spec, path).type, leaf)}
    if encoders:
        return {'type': 'multi', 'encoders': encoders}
    entries = '; '.join(f'{name!r}: {_what(leaf)}' for name, leaf in leaf_spaces(space))
    raise UserError(f"{path} is {spec!r}{_taken(cls)} but there are none among the entries ({entries}); use 'auto'")


def _of_entry(name: str, space: Dict) -> str:
    """The setting that uses an encoder for one entry of a Dict."""
    entry = next(path for path, _ in leaf_spaces(space))
    return f'policy.model.encoder={{type: multi, encoders: {{{entry}: {name}}}}} does for one'


def _fits(cls: type, space: Space) -> bool:
    """Whether an encoder is for such observations; one whose `fits` raises is not."""
    try:
        return _asked_fits(cls, cls.__name__, space)
    except UserError:
        return False


def _asked_fits(cls: type, name: str, space: Space) -> bool:
    """What the class method `fits` of an encoder returns, True without one. Raises: UserError if it raises."""
    if not hasattr(cls, 'fits'):
        return True
    if not isinstance(getattr_static(cls, 'fits'), classmethod | staticmethod):
        raise UserError(f'encoder {name!r}: fits must be a class method; write @classmethod above def fits(cls, space)')
    try:
        return bool(cls.fits(space))
    except Exception as error:
        remedy = 'let it return whether the encoder takes observations of the space that it is given'
        if isinstance(space, Dict):
            remedy = f'let it return False for a Dict: zoo then uses it for the entries that it fits, as {_of_entry(name, space)}'
        raise UserError(f'encoder {name!r}: fits() raised {show_error(error)} for {_what(space)}; {remedy}') from error


def _checked(network: Any, name: str) -> Any:
    """The network of an encoder. Raises: UserError if it lacks what heads on its features need."""
    n_feature = getattr(network, 'n_feature', None)
    gain = getattr(network, 'value_gain', None)
    problem = ''
    if not isinstance(network, nn.Module):
        problem = 'is no torch.nn.Module; extend this class'
    elif not isinstance(n_feature, int) or n_feature < 1:
        problem = f'has the n_feature {n_feature!r}; set self.n_feature to the width of its output'
    elif not isinstance(gain, int | float):
        problem = (
            f'has the value_gain {gain!r}; set the class attribute value_gain = 1.0, the gain of a value head on it'
        )
    if problem:
        raise UserError(f'encoder {name!r} {problem}')
    return network


def _taken(cls: type) -> str:
    """', which takes ..,' with the kinds of observations that an encoder fits; empty if it fits none of these kinds."""
    image = Box(np.zeros((3, 84, 84)), np.full((3, 84, 84), 255.0), 'uint8')
    kinds: dict[str, Space] = {'images': image, 'vectors': vectors(1), 'a Dict': Dict({'x': vectors(1)})}
    fitting = ' or '.join(words for words, space in kinds.items() if _fits(cls, space))
    if fitting:
        return f', which takes {fitting},'
    return ''


def _what(space: Space) -> str:
    """The kind of observations of a space, in words."""
    if isinstance(space, Dict):
        return f'a Dict of {", ".join(map(repr, space.spaces))}'
    if isinstance(space, Discrete):
        return f'single indices below {space.n}'
    if isinstance(space, Box) and holds_images(space):
        return f'images of shape {space.shape}'
    if not space.shape:
        return 'single numbers'
    kind = {MultiDiscrete: 'indices', MultiBinary: 'bits'}.get(type(space), 'numbers')
    if len(space.shape) == 1:
        return f'vectors of {space.shape[0]} {kind}'
    return f'arrays of {kind} of shape {space.shape}'


def make_policy_head(
    n_feature: int,
    action_space: Space,
    state_dependent_std: bool = False,
    log_std_init: float = 0.0,
    distribution: str = 'auto',
    log_std_min: float = -10.0,
    log_std_max: float = 2.0,
) -> nn.Module:
    """The last layer of a policy: features [..., n_feature] -> logit [..., P], for an action space.

    Args: distribution: a registered name, or 'auto': chosen by the space. The last arguments are for real-valued actions,
      see `ActorCriticConfig`.
    """
    stds = dict(log_std_init=log_std_init, log_std_min=log_std_min, log_std_max=log_std_max)
    options = dict(n_feature=n_feature, state_dependent_std=state_dependent_std, **stds)
    return make_dist(action_space, distribution, options).make_head(n_feature, options)
