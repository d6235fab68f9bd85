"""Networks, registered by name in MODEL_REGISTRY, and building blocks for your own models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.model.actor_critic import PPG, VAC
    from zoo.model.config import PPGModelConfig as PPGConfig
    from zoo.model.config import VACConfig
    from zoo.model.encoder import make_encoder
    from zoo.model.inputs import make_input
    from zoo.model.layers import ValueHead, make_policy_head
    from zoo.model.multi import MultiEncoder
    from zoo.model.recurrent import Core, RecurrentPPG, RecurrentVAC
    from zoo.model.simba import Simba

__all__ = [
    'PPG',
    'VAC',
    'Core',
    'MultiEncoder',
    'PPGConfig',
    'RecurrentPPG',
    'RecurrentVAC',
    'Simba',
    'VACConfig',
    'ValueHead',
    'make_encoder',
    'make_input',
    'make_policy_head',
]

_HOME = {
    'zoo.model.actor_critic': 'PPG VAC',
    'zoo.model.config': 'VACConfig',
    'zoo.model.encoder': 'make_encoder',
    'zoo.model.inputs': 'make_input',
    'zoo.model.layers': 'ValueHead make_policy_head',
    'zoo.model.multi': 'MultiEncoder',
    'zoo.model.recurrent': 'Core RecurrentPPG RecurrentVAC',
    'zoo.model.simba': 'Simba',
}
__getattr__, __dir__ = lazy_names(
    __name__,
    {name: module for module, names in _HOME.items() for name in names.split()}
    | {'PPGConfig': 'zoo.model.config:PPGModelConfig'},
)
