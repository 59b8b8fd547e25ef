"""An earlier place of `PolicyTraits`."""

from isaaclab_arena.interfaces.policy import PolicyTraits

__all__ = ["PolicyTraits"]
