"""One rank of a training run, as a process that the benchmarks of training start and ask to go on.

Usage: python benchmarks/training_rank.py [--physics_steps N] TASK [what isaaclab_arena.training.train takes]

Says as one line of JSON what it trains and how long it took to get ready. Each line ``<iterations>`` on the standard
input makes it do that many iterations and print, as one line of JSON, what they took and what it sent to other ranks.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.process import limit_threads
from isaaclab_arena.distributed.process_group import initialise
from isaaclab_arena.environments.tasks.cartpole import Cartpole
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.training.learner import learner as learner_module
from isaaclab_arena.training.learner.agent import check_agent, networks_of
from isaaclab_arena.training.learner.learner import Learner
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.options import read_train_options
from isaaclab_arena.training.settings.request import training_config

PHYSICS_STEPS = "--physics_steps"
PHYSICS_DT = 0.002
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "gather")


class Sent:
    """Counts the collectives of this process by the bytes that it puts into them.

    Attributes:
        calls: Collective and bytes of this rank's own tensor to the number of such calls.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        for name in COLLECTIVES:
            setattr(torch.distributed, name, self._counted(name, getattr(torch.distributed, name)))

    def _counted(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # all_gather takes the list of what is received first, and then what is sent.
            own = args[1] if name == "all_gather" else args[0]
            self.calls[name, own.numel() * own.element_size()] += 1
            return collective(*args, **kwargs)

        return call


class Stopwatch:
    """What building the networks takes, and learning without taking samples.

    Attributes:
        networks_s: Time of building the algorithm with its networks [s].
        learning_cpu_s: CPU time of all updates so far [s].
    """

    def __init__(self) -> None:
        self.networks_s = self.learning_cpu_s = 0.0
        self._build = learner_module.build_algorithm
        learner_module.build_algorithm = self._built

    def _built(self, *args: Any) -> Any:
        began = time.perf_counter()
        algorithm = self._build(*args)
        self.networks_s = time.perf_counter() - began
        update = algorithm.update
        algorithm.update = lambda: self._updated(update)
        return algorithm

    def _updated(self, update: Callable[[], Any]) -> Any:
        began = time.process_time()
        losses = update()
        self.learning_cpu_s += time.process_time() - began
        return losses


def facts(config: TrainingConfig, learner: Learner, physics_steps: int) -> dict[str, Any]:
    """Return what has to be known to compare this training with another one."""
    algorithm = learner.algorithm
    of_algorithm = getattr(algorithm, "settings", algorithm)
    parameters = [one for network in networks_of(algorithm).values() for one in network.parameters()]
    return {
        "num_envs": config.num_envs,
        "physics_steps": physics_steps,
        "physics_dt": PHYSICS_DT,
        "num_steps_per_env": config.agent.num_steps_per_env,
        "hidden_dims": list(config.agent.actor["hidden_dims"]),
        "num_learning_epochs": of_algorithm.num_learning_epochs,
        "num_mini_batches": of_algorithm.num_mini_batches,
        "gradient_bytes": sum(one.numel() * one.element_size() for one in parameters if one.requires_grad),
    }


def turn(learner: Learner, sent: Sent, stopwatch: Stopwatch, iterations: int) -> dict[str, Any]:
    """Do some iterations, and return what they took."""
    sent.calls.clear()
    stopwatch.learning_cpu_s = 0.0
    cpu, wall = time.process_time(), time.perf_counter()
    done = [learner.iterate() for _ in range(iterations)]
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "env_steps": sum(one.env_steps for one in done),
        "learning_cpu_s": stopwatch.learning_cpu_s,
        "calls": [[name, size, number] for (name, size), number in sent.calls.items()],
    }


def main(arguments: list[str]) -> None:
    if PHYSICS_STEPS in arguments:
        at = arguments.index(PHYSICS_STEPS)
        Cartpole.control_dt = int(arguments[at + 1]) * PHYSICS_DT
        arguments = arguments[:at] + arguments[at + 2 :]
    sent, stopwatch = Sent(), Stopwatch()
    options, task, words = read_train_options(arguments, program=sys.argv[0])
    context = DistributedContext.from_environment(device="cpu")
    config = training_config(options, task, words, world_size=context.world_size)
    check_agent(config)
    num_threads = options.num_threads or default_num_threads(context.local_world_size)
    limit_threads(options.torch_threads)
    with initialise(context, timeout_s=config.distributed.timeout_s):
        began = time.perf_counter()
        learner = Learner(config, context, num_threads=num_threads)
        built_s = time.perf_counter() - began
        steps = round(learner.environment.environment.control_dt / PHYSICS_DT)
        start = {
            "environment_s": built_s - stopwatch.networks_s,
            "networks_s": stopwatch.networks_s,
        }
        print(json.dumps({"facts": facts(config, learner, steps), "start": start}), flush=True)
        for line in sys.stdin:
            print(json.dumps(turn(learner, sent, stopwatch, int(line))), flush=True)
        learner.close()


if __name__ == "__main__":
    main(sys.argv[1:])
