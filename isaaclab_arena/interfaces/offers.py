"""The offers of a class beyond the minimum. Nothing else asks where a class defines a method."""

import dataclasses
import logging
import types
import typing
from typing import Any

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Metric

_LOG = logging.getLogger(__name__)


def set_aside(cls: type, whole: str, quicker: str, default: object) -> None:
    """Give a class the default of a quicker way, if its `whole` way comes from below the class that has the quicker."""
    owner_of_whole, owner = (
        next(number for number, each in enumerate(cls.__mro__) if name in vars(each)) for name in (whole, quicker)
    )
    # A claim of a class beside the one with the whole way is not about that way; a method may go on to it.
    is_beside = isinstance(default, bool) and not issubclass(cls.__mro__[owner], cls.__mro__[owner_of_whole])
    if (owner_of_whole < owner or is_beside) and getattr(cls, quicker) is not default:
        setattr(cls, quicker, default)
        _LOG.info("%s has a '%s' of its own, so '%s' of its base is ignored", cls.__name__, whole, quicker)


# The abilities of a policy class.

# A base's statements about its ``get_action`` do not hold for another one, and must not bypass it.
_OF_GET_ACTION = ("traits", "pictures_to_see", "act_in_some", "planned", "chunks", "connections")
# These abilities need several methods.
_TOGETHER = (("chunks", "look", "chunk_traits"), ("network", "asking"), ("slots_per_call", "fill_calls_up_to"))


def settle_policy_class(policy_class: Any, base: Any) -> None:
    """Settle a class that derives from `base`: its config class, withdrawn methods, offers and traits."""
    for name in {each.name for each in dataclasses.fields(base.traits)} - {"pictures", "remote"}:
        value = policy_class.__dict__.get(name, dataclasses.MISSING)
        # A class may also call something of its own ``metrics``.
        is_own = not isinstance(value, tuple) or not any(isinstance(each, Metric) for each in value)
        if value is not dataclasses.MISSING and not (name == "metrics" and is_own):
            what = f"{policy_class.__name__}.{name}"
            raise ConfigError(f"{what} has no effect; set traits = PolicyTraits({name}=...) instead")

    # ``MyCfg`` of a class that derives from ``base[MyCfg]``, also through others.
    parameter = _parameter(policy_class, base)
    parameter = typing.get_origin(parameter) or parameter
    is_class = isinstance(parameter, type) and parameter not in (types.NoneType, Any)
    if is_class and "config_class" not in policy_class.__dict__:
        policy_class.config_class = parameter

    # A method that a class sets to None gets the default back: it is not offered.
    for name in [name for name, value in vars(policy_class).items() if value is None]:
        if callable(getattr(base, name, None)):
            setattr(policy_class, name, vars(base)[name])

    # The attributes of ``base`` that the class has of its own, as far as they hold for its ``get_action``.
    # ``network`` is a name that policies use for their own attributes, so the base has no method of that name.
    names = [*(name for name in vars(base) if not name.startswith("_")), "network", "asking"]
    below = [vars(each) for each in policy_class.__mro__[: policy_class.__mro__.index(base)]]
    depth = {name: next((number for number, each in enumerate(below) if name in each), len(below)) for name in names}
    offers = {name for name in names if depth[name] < len(below)}
    offers -= {name for name in offers if below[depth[name]][name] is vars(base).get(name)}
    offers -= {name for name in _OF_GET_ACTION if depth[name] > depth["get_action"]}
    for together in _TOGETHER:
        offers -= set() if offers.issuperset(together) else set(together)
    policy_class.offers = frozenset(offers)

    traits = policy_class.traits
    if "traits" not in offers and traits.pictures != "all":
        # A base's statement about pictures holds for its own `get_action`.
        traits = dataclasses.replace(traits, pictures="all")
    if not traits.remote and any(issubclass(each, base) and each.traits.remote for each in policy_class.__bases__):
        traits = dataclasses.replace(traits, remote=True)
    if traits is not policy_class.traits:
        policy_class.traits = traits


def _parameter(policy_class: type, base: type) -> Any:
    # Only the class's own bases count: it inherits the value of others anyway.
    for each in policy_class.__dict__.get("__orig_bases__", ()):
        origin, arguments = typing.get_origin(each), typing.get_args(each)
        if origin is base:
            return arguments[0]
        if isinstance(origin, type) and issubclass(origin, base):
            inner, parameters = _parameter(origin, base), getattr(origin, "__parameters__", ())
            if inner in parameters:
                return arguments[parameters.index(inner)]
    return None
