"""Former protocols of environments and builders, for code of others that asks ``isinstance`` or derives from them."""

from abc import ABC, ABCMeta
from typing import Any

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, EnvironmentWrapper


class _Told(ABCMeta):
    """A wrapper is an instance if what it passes on is that of an instance."""

    def __instancecheck__(cls, instance: Any) -> bool:
        passed = isinstance(instance, EnvironmentWrapper) and any(
            name not in vars(instance)
            and getattr(type(instance), name, None) is vars(EnvironmentWrapper).get(name, cls)
            for name in vars(cls).get("attributes", ())
        )
        return super().__instancecheck__(instance) and (not passed or isinstance(instance.real, cls))


class _Capability(ABC, metaclass=_Told):
    """A class counts as a subclass if it has these attributes of its own and not as the contract has them."""

    attributes: tuple[str, ...] = ()
    contract: type = Environment

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        if "attributes" not in vars(cls):
            return NotImplemented
        return all(
            hasattr(other, name) and getattr(other, name) is not getattr(cls.contract, name) for name in cls.attributes
        )


class Recordable(_Capability):
    """Shows the state of its simulator."""

    attributes = ("state",)


class PartwiseRecordable(Recordable):
    """Shows its state in parts too."""

    attributes = ("state", "state_parts", "state_of")


class Restorable(_Capability):
    """Starts a recorded episode again bit for bit."""

    attributes = ("episode_states", "restore")


class Snapshottable(_Capability):
    """Returns to an earlier state."""

    attributes = ("snapshot", "restore_snapshot")


class TriesSteps(_Capability):
    """Tries steps before their contacts are known to have room."""

    attributes = ("try_step", "step_again")


class PicturesOnDemand(_Capability):
    """Leaves out pictures that no reader asks for."""

    attributes = ("pictures_drawn", "draw_pictures_of")


class Filmable(_Capability):
    """Can be filmed."""

    attributes = ("film",)


class FilmableLater(Filmable):
    """Draws its films after it has moved on."""

    attributes = ("film", "film_later")


class BeginsSteps(_Capability):
    """Has steps made by other processes."""

    attributes = ("background",)


class BeginsResets(_Capability):
    """Has episodes started by other processes."""

    attributes = ("background",)


class ContentBuilder(_Capability):
    """Knows more sources of an environment's behaviour than its options name."""

    attributes, contract = ("content_sources",), EnvironmentBuilder


class VariableEnvironmentBuilder(_Capability):
    """Builds environments with variations."""

    attributes, contract = ("variations",), EnvironmentBuilder
