"""Count the messages between two training ranks.

Two ranks train a cartpole; the program counts every collective of one iteration with the bytes that a rank puts into
it. The gradient is necessary, once for every mini-batch at a boundary; the rest keeps ranks equal, and is statistics.
The counts do not depend on the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.measure import Page, PageOptions, Table, run
from benchmarks.harness.workers import module
from benchmarks.training.processes import Training

WORLD_SIZE = 2


@dataclass(frozen=True, kw_only=True)
class Options(PageOptions):
    """Options of the program."""

    task: str = "cartpole"  # Task of the training.
    num_envs: int = 64  # Env slots of a rank.


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """A rank's part in the collectives of one iteration."""

    mini_batches: int  # Mini-batches of all epochs.
    gradient_bytes: int  # Size of the gradient of all networks.
    gradient_calls: int  # Collectives with the gradient in them, alone or with weights and moments.
    calls: int  # All collectives.
    sent_bytes: int  # Bytes of all collectives.

    @property
    def least_bytes(self) -> int:
        """Bytes of exchanging a gradient with every mini-batch, and nothing else."""
        return self.mini_batches * self.gradient_bytes


def exchanged(facts: Mapping[str, Any], answer: Mapping[str, Any], iterations: int) -> Exchanged:
    """Return a rank's part in the collectives of one iteration, from its facts and its answer."""
    calls = [(size, number) for _, size, number in answer["calls"]]
    gradient_bytes = facts["gradient_bytes"]
    return Exchanged(
        mini_batches=facts["num_learning_epochs"] * facts["num_mini_batches"],
        gradient_bytes=gradient_bytes,
        gradient_calls=sum(number for size, number in calls if size >= gradient_bytes) // iterations,
        calls=sum(number for _, number in calls) // iterations,
        sent_bytes=sum(size * number for size, number in calls) // iterations,
    )


def counted(options: Options, words: tuple[str, ...]) -> Exchanged:
    """Train for an iteration, and count."""
    arguments = (options.task, "--num_envs", options.num_envs, "--num_threads", 1, *words)
    command = module("benchmarks.training.rank", *arguments)
    training = Training(command, world_size=WORLD_SIZE)
    training.turn(1)
    answer = training.turn(1).ranks[0]
    training.close()
    return exchanged(training.hello["facts"], answer, 1)


VARIANTS = {
    "PPO": (),
    "PPO, `schedule=fixed`": ("agent.algorithm.schedule=fixed",),
    "PPO, `grad_sync_period=4`": ("distributed.grad_sync_period=4",),
    "PPO, `grad_sync_period=4`, `schedule=fixed`": ("distributed.grad_sync_period=4", "agent.algorithm.schedule=fixed"),
    "GRPO": ("agent.algorithm={class_name: GRPO, group_size: 8}",),
}


def figures(one: Exchanged) -> tuple[str, ...]:
    """Return the figures of one line of the table."""
    return (
        f"{one.gradient_bytes:,}",
        str(one.mini_batches),
        str(one.gradient_calls),
        str(one.calls),
        f"{one.calls / one.mini_batches:.1f}",
        f"{one.sent_bytes:,}",
        f"{one.sent_bytes / one.mini_batches:,.0f}",
        f"{one.sent_bytes / one.least_bytes:.3f}",
    )


NOTES = """\
Samples never leave their rank. The KL divergence that PPO's adaptive learning rate follows travels in the message of
the gradient, and every rank draws the same rate from it; with `schedule=fixed` it is not sent. Once in an iteration
there are the moments of advantages, those of the observations of each network, and one message with losses and the
statistics of episodes. With `grad_sync_period` above 1 a boundary averages weights and the optimiser's two moments
besides the gradient, four times as much in one message, so it saves messages, and bytes only above a period of 4; the
adaptive learning rate still needs a number from every mini-batch."""


def main(options: Options) -> None:
    """Count for each variant of the algorithm, and write the page."""
    page = Page("training_exchange", "What training ranks send to each other", options)
    numbers = ("gradient, bytes", "mini-batches", "gradients sent", "collectives", "each", "bytes", "each", "share")
    table = Table("algorithm", *numbers)
    for label, words in VARIANTS.items():
        table.add(label, *figures(counted(options, words)))
    text = f"""\
One iteration of `{options.task}` with {options.num_envs} env slots on each of {WORLD_SIZE} ranks: the collectives that
a rank takes part in and the bytes of its own that it puts into them, learning and statistics of episodes together.
"Each" is for each mini-batch, and the share is that of sending a gradient for each mini-batch and nothing else."""
    page.write(text, table, NOTES)


if __name__ == "__main__":
    run(main, Options)
