"""Networks, registered by name in MODEL_REGISTRY, and building blocks for your own models."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.model.actor_critic import PPG as PPG, VAC as VAC
    from zoo.model.config import PPGModelConfig, RecurrentConfig as RecurrentConfig, VACConfig as VACConfig
    from zoo.model.encoder import (
        MultiEncoder as MultiEncoder,
        Simba as Simba,
        make_encoder as make_encoder,
        make_policy_head as make_policy_head,
    )
    from zoo.model.images import holds_images as holds_images, image_shape as image_shape
    from zoo.model.inputs import make_input as make_input
    from zoo.model.layers import ValueHead as ValueHead
    from zoo.model.recurrent import (
        Core as Core,
        MemoryCell as MemoryCell,
        RecurrentPPG as RecurrentPPG,
        RecurrentVAC as RecurrentVAC,
    )

    PPGConfig = PPGModelConfig

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.model.actor_critic': 'PPG VAC',
        'zoo.model.config': 'PPGConfig=PPGModelConfig RecurrentConfig VACConfig',
        'zoo.model.encoder': 'MultiEncoder Simba make_encoder make_policy_head',
        'zoo.model.images': 'holds_images image_shape',
        'zoo.model.inputs': 'make_input',
        'zoo.model.layers': 'ValueHead',
        'zoo.model.recurrent': 'Core MemoryCell RecurrentPPG RecurrentVAC',
    },
)
