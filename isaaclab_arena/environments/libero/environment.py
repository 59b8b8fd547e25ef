"""LIBERO's tasks as an environment whose episodes are described by their conditions."""

from collections.abc import Mapping

import numpy as np
import torch

from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotReset
from isaaclab_arena.environments.gym.environment import GymEnvironment, GymTraits
from isaaclab_arena.environments.libero.protocols import Protocol, Seeding
from isaaclab_arena.interfaces.episode import Conditions, Episode

FIXTURE_SEED = "libero.fixture_seed"
RESET_INDEX = "libero.reset_index"
INIT_STATE = "libero.init_state"


class LiberoEnvironment(GymEnvironment):
    """A batch of LIBERO's environments.

    The conditions of an episode are its initial state, and where fixtures stand: a seed, and how many resets come
    before. They follow from the index of the episode as the protocol says.

    Args:
        slots: The single environments.
        num_envs: How many.
        traits: What they do not say themselves.
        device: Where observations live and actions are expected.
        protocol: How episodes are played.
        facts: What decides the numbers beside the versions of packages, for the provenance.
    """

    def __init__(
        self,
        slots: EnvSlots,
        num_envs: int,
        traits: GymTraits,
        device: torch.device,
        *,
        protocol: Protocol,
        facts: Mapping[str, str],
    ) -> None:
        super().__init__(slots, num_envs, traits, device)
        self._protocol = protocol
        self._facts = facts

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the seed of the fixtures, where it belongs to the episode."""
        if self._protocol.seeding is not Seeding.EPISODE:
            return {FIXTURE_SEED: self._protocol.seed}
        return {FIXTURE_SEED: int(generator.integers(0, 2**32, dtype=np.uint64))}

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return the conditions with what follows from the index of the episode."""
        index, seeding = episode.episode_index, self._protocol.seeding
        seed = int(str(conditions[FIXTURE_SEED])) + (index if seeding is Seeding.EVERY_RESET else 0)
        resets = 0 if seeding is Seeding.EPISODE else self._protocol.resets_before + index
        return {**conditions, FIXTURE_SEED: seed, RESET_INDEX: resets, INIT_STATE: index}

    def slot_reset(self, conditions: Conditions) -> SlotReset:
        """Return what a single environment starts from: all of the conditions."""
        plain = {key: int(str(conditions[key])) for key in (FIXTURE_SEED, RESET_INDEX, INIT_STATE)}
        return SlotReset(seed=plain[FIXTURE_SEED], options={"conditions": plain})

    def provenance(self) -> Mapping[str, str]:
        """Return what simulated an episode, by which protocol."""
        return {**super().provenance(), **self._facts}
