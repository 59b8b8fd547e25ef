"""The suites of tasks that papers report as one number, by the names of their environments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.expansion.suites import SuiteTask


@dataclass(frozen=True, kw_only=True)
class NamedTasks:
    """A suite with a fixed list of tasks."""

    words: str  # description for the list of suites
    family: str  # part before the colon in the names of its environments
    names: tuple[str, ...]

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        del options
        return [SuiteTask(label=name, environment=f"{self.family}:{name}") for name in self.names]


METAWORLD_MT10 = NamedTasks(
    words="Meta-World's ten tasks of MT10, in its order.",
    family="metaworld",
    names=(
        "reach-v3", "push-v3", "pick-place-v3", "door-open-v3", "drawer-open-v3", "drawer-close-v3",
        "button-press-topdown-v3", "peg-insert-side-v3", "window-open-v3", "window-close-v3",
    ),
)  # fmt: skip

METAWORLD_MT50 = NamedTasks(
    words="Meta-World's fifty tasks of MT50, in its order.",
    family="metaworld",
    names=(
        "assembly-v3", "basketball-v3", "bin-picking-v3", "box-close-v3", "button-press-topdown-v3",
        "button-press-topdown-wall-v3", "button-press-v3", "button-press-wall-v3", "coffee-button-v3", "coffee-pull-v3",
        "coffee-push-v3", "dial-turn-v3", "disassemble-v3", "door-close-v3", "door-lock-v3", "door-open-v3",
        "door-unlock-v3", "hand-insert-v3", "drawer-close-v3", "drawer-open-v3", "faucet-open-v3", "faucet-close-v3",
        "hammer-v3", "handle-press-side-v3", "handle-press-v3", "handle-pull-side-v3", "handle-pull-v3",
        "lever-pull-v3", "pick-place-wall-v3", "pick-out-of-hole-v3", "pick-place-v3", "plate-slide-v3",
        "plate-slide-side-v3", "plate-slide-back-v3", "plate-slide-back-side-v3", "peg-insert-side-v3",
        "peg-unplug-side-v3", "soccer-v3", "stick-push-v3", "stick-pull-v3", "push-v3", "push-wall-v3", "push-back-v3",
        "reach-v3", "reach-wall-v3", "shelf-place-v3", "sweep-into-v3", "sweep-v3", "window-open-v3", "window-close-v3",
    ),
)  # fmt: skip
