"""A policy of somebody's own, as LeRobot finds it in a package of such a name: it remembers in ways of its own."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]
from lerobot.configs.types import NormalizationMode  # pyright: ignore[reportMissingImports]
from lerobot.policies.act.processor_act import (  # pyright: ignore[reportMissingImports]
    make_act_pre_post_processors as make_recurrent_pre_post_processors,  # noqa: F401  LeRobot looks for it here
)
from lerobot.policies.pretrained import PreTrainedPolicy  # pyright: ignore[reportMissingImports]

STATE, ACTION = "observation.state", "action"


@PreTrainedConfig.register_subclass("recurrent")
@dataclass
class RecurrentConfig(PreTrainedConfig):
    """Actions are planned two at a time."""

    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.MEAN_STD)
    )
    observation_delta_indices = action_delta_indices = reward_delta_indices = None

    def validate_features(self) -> None:
        """Take any."""

    def get_optimizer_preset(self) -> Any:
        """Return nothing: it is not trained."""

    def get_scheduler_preset(self) -> Any:
        """Return nothing."""


class Notes:
    """What was seen in an episode, and how often."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"count": 0, "brightness": []}


class RecurrentPolicy(PreTrainedPolicy):
    """Keeps the state of its cell, a plan, and notes, none of which LeRobot's own policies have."""

    config_class, name = RecurrentConfig, "recurrent"

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__(config)
        (size,), (self.num_actions,) = config.input_features[STATE].shape, config.output_features[ACTION].shape
        self.cell, self.head = torch.nn.GRUCell(size, 16), torch.nn.Linear(18, 2 * self.num_actions)
        self.register_buffer("hidden", torch.zeros(1, 16), persistent=False)
        self.reset()

    def get_optim_params(self) -> dict:
        return {}

    def reset(self) -> None:
        self.hidden.zero_()
        self.plan, self.notes = deque(), Notes()

    def forward(self, batch: Any) -> Any:
        raise NotImplementedError

    def predict_action_chunk(self, batch: Any, **_: Any) -> torch.Tensor:
        notes = torch.tensor([[self.notes.seen["count"] / 10, sum(self.notes.seen["brightness"])]])
        plan = self.head(torch.cat([self.hidden, notes], dim=1)) + 0.1 * torch.randn(2 * self.num_actions)
        return torch.tanh(plan).reshape(1, 2, self.num_actions)

    @torch.no_grad()
    def select_action(self, batch: Any, **_: Any) -> torch.Tensor:
        self.hidden.copy_(self.cell(batch[STATE], self.hidden))
        (picture,) = self.config.image_features
        self.notes.seen["count"] += 1
        self.notes.seen["brightness"].append(float(batch[picture].mean()))
        if not self.plan:
            self.plan.extend(self.predict_action_chunk(batch).transpose(0, 1))
        return self.plan.popleft()
