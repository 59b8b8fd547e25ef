"""``isaaclab-arena collect``: record demonstrations of an expert, with all that policies may be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

from isaaclab_arena.evaluation.policy_runner import PolicyOptions
from isaaclab_arena.evaluation.policy_runner import main as run_policy


@dataclass(frozen=True, kw_only=True)
class CollectOptions(PolicyOptions):
    """Record an expert's demonstrations, cameras on: OPTIONS ENVIRONMENT [options of environment and policy]."""

    policy_type: str = "scripted"
    """Registered name or dotted class path of the expert."""


def main(argv: Sequence[str]) -> int:
    """Record a policy in one environment with cameras, by default the scripted expert; return the exit code."""
    # Options are those of ``isaaclab_arena.evaluation.policy_runner``. For several environments at once, run a job file
    # with ``--record_observations all --enable_cameras``.
    return run_policy(with_defaults(argv), options_class=CollectOptions, typed_as="isaaclab-arena collect")


def with_defaults(argv: Sequence[str]) -> list[str]:
    """Return a command line with the defaults of collecting in front, unless it sets them."""
    given = {argument.partition("=")[0].replace("-", "_") for argument in argv if argument.startswith("--")}
    defaults: list[str] = []
    for option, value in (("--policy_type", "scripted"), ("--record_observations", "all")):
        if option.replace("-", "_") not in given:
            defaults += [option, value]
    return ["--enable_cameras", *defaults, *argv]
