"""LIBERO's suites, as a checkout of the user's own lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.expansion.suites import SuiteTask
from isaaclab_arena.environments.libero.checkout import checkout_at
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean


@dataclass(frozen=True, kw_only=True)
class LiberoSuite:
    """A suite of a checkout, whose tasks are called by their index: their names are too long for names of jobs.

    Attributes:
        name: What the checkout calls it.
    """

    name: str

    @property
    def words(self) -> str:
        """What it is, for the list of suites."""
        return f"The tasks of {self.name}, of the checkout that libero_path or LIBERO_PATH names."

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        path = options.get("libero_path")
        if path is not None and not isinstance(path, str):
            raise ConfigError(Problem("is not the path of a checkout", key="libero_path"))
        suites = checkout_at(path).suites
        if self.name not in suites:
            message = f"this checkout has no suite '{self.name}'{did_you_mean(self.name, suites)}"
            raise ConfigError(Problem(message, key="suite"))
        numbers = range(len(suites[self.name]))
        return [SuiteTask(label=str(number), environment=f"libero:{self.name}/{number}") for number in numbers]


def libero_suite(name: str) -> LiberoSuite:
    """Return the suite of ``libero:<name>``."""
    return LiberoSuite(name=name)


LIBERO_SPATIAL, LIBERO_OBJECT, LIBERO_GOAL, LIBERO_10, LIBERO_90 = (
    LiberoSuite(name=f"libero_{which}") for which in ("spatial", "object", "goal", "10", "90")
)
