"""Run one rank of a training, as a process that the benchmarks of training start and ask to go on.

Usage: python -m benchmarks.training.rank [--physics_steps N] TASK [what isaaclab_arena.training.train takes]

Prints the facts of its training and the time of its start as one line of JSON. For each line ``<iterations>`` on the
standard input it does that many iterations and prints, as one line of JSON, their time and its messages to other ranks.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed

from benchmarks.harness.workers import serve
from benchmarks.training.processes import LearningStopwatch
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import default_num_threads, set_up_torch
from isaaclab_arena.distributed.ranks import Neighbours, between_neighbours, initialise
from isaaclab_arena.environments.tasks.cartpole import Cartpole
from isaaclab_arena.training import learner as learner_module
from isaaclab_arena.training.checkpoints import networks_of
from isaaclab_arena.training.config import TrainingConfig, read_train_options, training_config
from isaaclab_arena.training.learner import Learner, check_agent

PHYSICS_STEPS = "--physics_steps"
PHYSICS_DT = 0.002
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "gather")


class Sent:
    """Counts the collectives of this process by the bytes that it puts into them."""

    def __init__(self) -> None:
        # Collective and bytes of this rank's own tensor to the number of such calls.
        self.calls: Counter[tuple[str, int]] = Counter()
        for name in COLLECTIVES:
            setattr(torch.distributed, name, self._counted(name, getattr(torch.distributed, name)))
        Neighbours.gather = self._counted("neighbours", Neighbours.gather)

    def _counted(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # The first argument of all_gather is the list of received tensors, that of neighbours is `self`.
            own = args[1] if name in {"all_gather", "neighbours"} else args[0]
            self.calls[name, own.numel() * own.element_size()] += 1
            return collective(*args, **kwargs)

        return call


def facts(config: TrainingConfig, learner: Learner) -> dict[str, Any]:
    """Return the facts for a comparison with another training."""
    algorithm = learner.algorithm
    parameters = [one for network in networks_of(algorithm).values() for one in network.parameters()]
    return {
        "num_envs": config.num_envs,
        "physics_steps": round(learner.environment.environment.control_dt / PHYSICS_DT),
        "physics_dt": PHYSICS_DT,
        "num_steps_per_env": config.agent.num_steps_per_env,
        "hidden_dims": list(config.agent.actor["hidden_dims"]),
        "num_learning_epochs": algorithm.num_learning_epochs,
        "num_mini_batches": algorithm.num_mini_batches,
        "gradient_bytes": sum(one.numel() * one.element_size() for one in parameters if one.requires_grad),
    }


def main(arguments: list[str]) -> None:
    """Build a learner, and do iterations for each line."""
    if PHYSICS_STEPS in arguments:
        at = arguments.index(PHYSICS_STEPS)
        Cartpole.control_dt = int(arguments[at + 1]) * PHYSICS_DT
        arguments = arguments[:at] + arguments[at + 2 :]
    options, task, words = read_train_options(arguments, program=sys.argv[0])
    context = DistributedContext.from_environment(device="cpu")
    config = training_config(options, task, words, world_size=context.world_size)
    check_agent(config)
    set_up_torch(options.torch_threads)
    timeout_s = config.distributed.timeout_s
    with (
        initialise(context, timeout_s=timeout_s, process_group=options.process_group) as ranks,
        between_neighbours(ranks, timeout_s=timeout_s) if options.process_group != "gloo" else nullcontext(),
    ):
        learner, start = built(config, context, options.num_threads or default_num_threads(context.local_world_size))
        sent, stopwatch = Sent(), LearningStopwatch(learner.algorithm)

        def respond(iterations: int) -> dict[str, Any]:
            sent.calls.clear()
            before = learner.env_steps
            took = stopwatch.turn(lambda: [learner.iterate() for _ in range(iterations)])
            calls = [[name, size, number] for (name, size), number in sent.calls.items()]
            return {**took, "env_steps": learner.env_steps - before, "calls": calls}

        serve({"facts": facts(config, learner), "start": start}, respond)
        learner.environment.close()


def built(config: TrainingConfig, context: DistributedContext, num_threads: int) -> tuple[Learner, dict[str, float]]:
    """Build a learner; return it with the times of its environment and its networks [s]."""
    networks_s, build_algorithm = [], learner_module.build_algorithm

    def timed_build(*args: Any) -> Any:
        began = time.perf_counter()
        algorithm = build_algorithm(*args)
        networks_s.append(time.perf_counter() - began)
        return algorithm

    learner_module.build_algorithm = timed_build
    began = time.perf_counter()
    learner = Learner(config, context, num_threads=num_threads)
    built_s = time.perf_counter() - began
    return learner, {"environment_s": built_s - networks_s[0], "networks_s": networks_s[0]}


if __name__ == "__main__":
    main(sys.argv[1:])
