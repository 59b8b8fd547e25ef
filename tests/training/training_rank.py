"""One rank that learns with the others and looks whether all hold the same; see test_ranks."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from isaaclab_arena.checkpoints import numbered_checkpoints
from isaaclab_arena.distributed.context import DistributedContext, leave_process
from isaaclab_arena.distributed.ranks import (
    Ranks,
    average_over_ranks_,
    between_neighbours,
    gather_bytes_to_rank_zero,
    gather_from_ranks,
    highest_of_ranks,
    initialise,
    sum_over_ranks,
)
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.training.checkpoints import packed, unpacked
from isaaclab_arena.training.learner import (
    EpisodeCounter,
    Learner,
    OutOfSyncError,
    check_synchrony,
    learned_state,
    named_digests,
)
from isaaclab_arena.training.training_loop import Progress
from isaaclab_arena.training.training_run import TrainingRun
from tests.training.learning import small_config, small_learner
from tests.training.messages import Messages
from tests.training.samples import NUM_ENVS, algorithm, show


def of_all_ranks(value: Any) -> list[Any]:
    """Return every rank's value."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def are_alike(learner: Learner) -> bool:
    """Whether all ranks hold the same bits: networks with their normalisers, optimiser, learning rate."""
    found = of_all_ranks(named_digests(learned_state(learner.algorithm)))
    return all(each == found[0] for each in found)


def stays_alike(context: DistributedContext, *words: str) -> None:
    learner = small_learner(*words, context=context)
    seen = of_all_ranks(learner.environment.get_observations()["policy"].tolist())
    assert all(seen[0] != other for other in seen[1:]), "the ranks see the same episodes"
    for _ in range(3):
        done = learner.iterate()
        assert are_alike(learner), f"the ranks differ after iteration {learner.iterations}"
        told = {name: value for name, value in done.items() if not name.startswith("Perf")}
        assert len(set(map(repr, of_all_ranks(told)))) == 1
        steps = learner.iterations * context.world_size * 8 * 16
        assert done["Perf/total_steps"] == steps, "steps are counted over all ranks"
    check_synchrony(learned_state(learner.algorithm))


def gradients_are_averaged(context: DistributedContext) -> None:
    learner = small_learner(context=context)
    learner.iterate()
    parameters = list(learner.algorithm.actor.parameters())
    for parameter in (*parameters, *learner.algorithm.critic.parameters()):
        parameter.grad = torch.full_like(parameter, float(context.rank + 1))
    learner.algorithm._exchange.begin_update(1)
    learner.algorithm.reduce_parameters()
    mean = sum(range(1, context.world_size + 1)) / context.world_size
    assert all(torch.allclose(parameter.grad, torch.tensor(mean)) for parameter in parameters)


def ranks_drift_between_boundaries_and_meet_at_them(context: DistributedContext) -> None:
    words = ("distributed.grad_sync_period=3", "agent.algorithm.schedule=fixed", "agent.num_learning_epochs=2")
    learner = small_learner(*words, context=context)
    reduce_parameters, algorithm_ = learner.algorithm.reduce_parameters, learner.algorithm
    alike: list[bool] = []

    def watched() -> None:
        weights = named_digests({"actor": dict(algorithm_.actor.named_parameters())})
        alike.append(len(set(map(repr, of_all_ranks(weights)))) == 1)
        reduce_parameters()

    algorithm_.reduce_parameters = watched
    learner.iterate()
    # Before each of 8 mini-batches: alike at the start, and after the boundaries, which are the 3rd, the 6th, the 8th.
    assert alike == [True, False, False, True, False, False, True, False], alike
    assert are_alike(learner), "the ranks have not met at the end of the update"


def a_corrupted_rank_is_named(context: DistributedContext) -> None:
    learner = small_learner(context=context)
    learner.iterate()
    check_synchrony(learned_state(learner.algorithm))
    if context.rank == 1:
        learner.algorithm.actor.obs_normalizer._mean[0, 2] += 1e-6
    with pytest.raises(OutOfSyncError, match=r"actor_state_dict\.obs_normalizer\._mean of rank 1 differ"):
        check_synchrony(learned_state(learner.algorithm))


def ranks_that_differ_write_no_checkpoint_and_are_found(context: DistributedContext, ranks: Ranks, place: Path) -> None:
    learner = small_learner(context=context)
    run = TrainingRun(
        small_config("distributed.check_sync_every=2"),
        run_directory=place / "apart",
        ranks=ranks.within("apart"),
        learner=learner,
        evaluation=None,
        command_line=(),
        resume=False,
    )
    learner.iterate()
    run.save()
    learner.iterate()
    # As if one rank had resumed from an older checkpoint.
    learner.iterations += context.rank
    with pytest.raises(OutOfSyncError, match=r"iterations of rank 1.* differ"):
        run.save()
    if context.is_rank_zero:
        assert list(numbered_checkpoints(place / "apart")) == [1]
    # Weights that drift apart are found at every second iteration.
    learner.iterations -= context.rank
    with torch.no_grad():
        next(learner.algorithm.actor.parameters()).add_(1e-3 * context.rank)
    with closing(Progress(place / "apart", is_writer=False, after_step=2)) as progress:
        run.step(progress)
        with pytest.raises(OutOfSyncError, match="actor_state_dict"):
            run.step(progress)


def ranks_with_other_tensors_are_named(context: DistributedContext) -> None:
    state = {"weight": torch.zeros(3)} | ({"moment": torch.zeros(3)} if context.rank == 1 else {})
    with pytest.raises(OutOfSyncError, match="rank 1 has other ones than most"):
        check_synchrony(state)


def statistics_are_exact(context: DistributedContext) -> None:
    counter = EpisodeCounter(2, torch.device("cpu"))
    nobody, everybody = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    # Rank 0 ends 2 episodes, rank 1 ends 4, and so on, with returns of 1, 2, 3.
    for _ in range(context.rank + 1):
        reward = torch.full((2,), float(context.rank + 1))
        step = Step(
            observation={},
            reward=reward,
            terminated=everybody,
            truncated=nobody,
            success=everybody,
            diverged=nobody,
            metrics={"way_m": reward},
        )
        counter.add(step, everybody, nobody)
    told = counter.measures(sum_over_ranks(counter.take()))
    counts = range(1, context.world_size + 1)
    assert told["Train/num_episodes"] == 2 * sum(counts)
    mean = sum(count * count for count in counts) / sum(counts)
    assert told["Train/mean_reward"] == told["Metrics/way_m"] == mean
    assert told["Train/success_rate"] == 1.0


def training_taken_up_again_is_undisturbed(context: DistributedContext) -> None:
    undisturbed = small_learner(context=context)
    for _ in range(2):
        undisturbed.iterate()
    learned = unpacked(packed({**undisturbed.algorithm.save(), "iter": undisturbed.iterations}))
    states = gather_bytes_to_rank_zero(packed(undisturbed.rank_state()))
    assert len(states) == (context.world_size if context.is_rank_zero else 0)
    own = unpacked(packed(undisturbed.rank_state()))
    undisturbed.iterate()
    resumed = small_learner(context=context)
    assert resumed.load(learned, own)
    resumed.iterate()
    assert named_digests(learned_state(resumed.algorithm)) == named_digests(learned_state(undisturbed.algorithm))
    assert are_alike(resumed)


def saves_one_update(context: DistributedContext, directory: Path) -> None:
    learner = algorithm(NUM_ENVS, context)
    learner.broadcast_parameters()
    show(learner, [context.rank])
    learner.update()
    if context.is_rank_zero:
        torch.save(learner.save(), directory / "update.pt")


def collectives_give_the_same_over_sockets_and_over_gloo(context: DistributedContext, ranks: Ranks) -> None:
    def results() -> list[torch.Tensor]:
        # Sums of whole numbers have the same bits in any order.
        own = torch.arange(6.0).reshape(2, 3) + 10 * context.rank
        averaged = own.clone()
        average_over_ranks_(averaged)
        highest = torch.tensor(highest_of_ranks(7 - context.rank))
        return [averaged, highest, sum_over_ranks(own), *gather_from_ranks(own.to(torch.bfloat16))]

    over_gloo = results()
    with between_neighbours(ranks.within("collectives"), timeout_s=60.0):
        with Messages() as messages:
            over_sockets = results()
        assert messages.sizes == [], "gloo was used beside the sockets"
        saved = gather_bytes_to_rank_zero(bytes(range(context.rank + 3)))
        assert [len(each) for each in saved] == ([3, 4, 5][: context.world_size] if context.is_rank_zero else [])
    with Messages() as messages:
        assert all(map(torch.equal, over_gloo, results()))
    assert len(messages.sizes) == 4, "the sockets are used after the training that opened them"
    assert all(map(torch.equal, over_gloo, over_sockets))


def sockets_change_no_bits_of_two_ranks(context: DistributedContext, ranks: Ranks) -> None:
    def learned() -> list[Any]:
        learner = small_learner(context=context)
        told = [[each for each in learner.iterate().items() if "Loss" in each[0]] for _ in range(2)]
        assert are_alike(learner)
        return [told, *named_digests(learned_state(learner.algorithm)).items()]

    over_gloo = learned()
    with between_neighbours(ranks.within("bits"), timeout_s=60.0):
        over_sockets, again = learned(), learned()
    assert over_sockets == again
    assert context.world_size > 2 or over_sockets == over_gloo


def main(directory: Path) -> None:
    """Check everything; an AssertionError ends the rank."""
    torch.set_num_threads(1)
    context = DistributedContext.from_environment(device="cpu")
    with initialise(context) as ranks:
        checks: list[Callable[[], None]] = [
            lambda: stays_alike(context),
            lambda: stays_alike(context, "agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4"),
            lambda: gradients_are_averaged(context),
            lambda: ranks_drift_between_boundaries_and_meet_at_them(context),
            lambda: a_corrupted_rank_is_named(context),
            lambda: ranks_that_differ_write_no_checkpoint_and_are_found(context, ranks, directory),
            lambda: ranks_with_other_tensors_are_named(context),
            lambda: statistics_are_exact(context),
            lambda: training_taken_up_again_is_undisturbed(context),
            lambda: saves_one_update(context, directory),
            lambda: collectives_give_the_same_over_sockets_and_over_gloo(context, ranks),
            lambda: sockets_change_no_bits_of_two_ranks(context, ranks),
        ]
        for check in checks:
            check()
        if context.is_rank_zero:
            sys.stdout.write(f"{len(checks)} checks held\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_process(0)
