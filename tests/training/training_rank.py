"""One rank that learns with the others and looks whether all hold the same; see test_ranks."""

import sys
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
        assert done["Perf/total_steps"] == learner.iterations * context.world_size * 8 * 16
    check_synchrony(learned_state(learner.algorithm))


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
    state = learned_state(learner.algorithm)
    check_synchrony(state)
    if context.rank == 1:
        learner.algorithm.actor.obs_normalizer._mean[0, 2] += 1e-6
    with pytest.raises(OutOfSyncError, match=r"actor_state_dict\.obs_normalizer\._mean of rank 1"):
        check_synchrony(state)
    with pytest.raises(OutOfSyncError, match="rank 1 has other ones"):
        check_synchrony(state | ({"moment": torch.zeros(3)} if context.rank == 1 else {}))


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


def statistics_are_exact(context: DistributedContext) -> None:
    counter = EpisodeCounter(2, torch.device("cpu"))
    no, yes = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    # Rank 0 ends 2 episodes, rank 1 ends 4, and so on, with returns of 1, 2, 3.
    reward = torch.full((2,), float(context.rank + 1))
    ends: dict[str, Any] = {"terminated": yes, "truncated": no, "success": yes, "diverged": no}
    for _ in range(context.rank + 1):
        counter.add(Step(observation={}, reward=reward, metrics={"way_m": reward}, **ends), yes, no)
    told = counter.measures(sum_over_ranks(counter.take()))
    counts = range(1, context.world_size + 1)
    assert told["Train/num_episodes"] == 2 * sum(counts)
    mean = sum(count * count for count in counts) / sum(counts)
    assert told["Train/mean_reward"] == told["Metrics/way_m"] == mean
    assert told["Train/success_rate"] == 1.0


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


def main(directory: Path) -> None:
    """Check everything; an AssertionError ends the rank."""
    torch.set_num_threads(1)
    context = DistributedContext.from_environment(device="cpu")
    with initialise(context) as ranks:
        stays_alike(context)
        with between_neighbours(ranks.within("over sockets"), timeout_s=60.0):
            stays_alike(context, "agent.algorithm.class_name=GRPO", "agent.algorithm.group_size=4")
        ranks_drift_between_boundaries_and_meet_at_them(context)
        a_corrupted_rank_is_named(context)
        ranks_that_differ_write_no_checkpoint_and_are_found(context, ranks, directory)
        statistics_are_exact(context)
        saves_one_update(context, directory)
        collectives_give_the_same_over_sockets_and_over_gloo(context, ranks)
        if context.is_rank_zero:
            sys.stdout.write("all checks held\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_process(0)
