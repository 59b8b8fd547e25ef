"""For how many env slots a job's policy is asked, and what is promised for it, on any kind of processor."""

import json

import pytest
import torch

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.policy import PolicyTraits
from isaaclab_arena.storage.ledger import JobReport, Reproducible
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy


class Network(ShrugPolicy):
    """Answers as a network does on a processor where only batches of a multiple of ``granule`` do not see places."""

    traits = PolicyTraits(reproducible=True)
    granule = 4
    sizes: list[int]

    def __init__(self, config=None):
        super().__init__(config)
        type(self).sizes = []

    def get_action(self, env, observation):
        type(self).sizes.append(env.num_envs)
        action = torch.zeros(env.num_envs, 2)
        if env.num_envs % self.granule:
            action += torch.arange(env.num_envs)[:, None] * 1e-7
        return action


class Eights(Network):
    granule = 8


def played(directory, policy_class=Network, num_envs=5, **changes) -> JobReport:
    runner = JobRunner(settings(directory, **changes))
    return runner.run(coin_job(policy_class=policy_class, num_envs=num_envs))


@pytest.mark.parametrize(
    ("policy_class", "num_envs", "changes", "batch"),
    [
        (Network, 1, {}, 1),
        (Network, 2, {}, 4),
        (Network, 12, {}, 12),
        (Eights, 12, {}, 16),
        (Network, 25, {}, 28),
        (Eights, 50, {}, 56),
        (type("Sixteens", (Network,), {"granule": 16}), 3, {}, 16),
        # The batch of ``deterministic`` is filled up and asked about as well, and all groups are asked on one.
        (Network, 2, {"policy_batch": 6}, 8),
        (Eights, 2, {"policy_batch": 12}, 16),
        (Network, 9, {"pipeline": 2}, 8),
    ],
)
def test_a_network_is_asked_on_the_first_batch_on_which_places_make_no_difference(
    tmp_path, policy_class, num_envs, changes, batch
):
    report = played(tmp_path, policy_class, num_envs, **changes)
    assert (report.error, report.reproducible, report.plan_because) == (None, Reproducible.BITWISE, None)
    assert report.policy_batch == policy_class.sizes[-1] == batch
    assert json.loads((tmp_path / "coins" / "settled.json").read_text())["policy_batch"] == batch
    # Each size is asked for five times at most before the next one.
    smaller = {size for size in policy_class.sizes if size < batch}
    assert all(policy_class.sizes.count(size) <= 5 for size in smaller)


def plan_because(report: JobReport, batch: int | None) -> str:
    """Return why a job promises no more than its plan."""
    assert (report.error, report.reproducible, report.policy_batch) == (None, Reproducible.PLAN, batch)
    return str(report.plan_because)


def test_where_no_batch_will_do_the_plan_is_promised_and_why_is_said(tmp_path):
    never = type("Never", (Network,), {"granule": 10_000})
    assert "a batch of 8 and of 16 rows" in plan_because(played(tmp_path, never), 8)


def test_what_was_settled_is_kept_by_a_machine_on_which_it_does_not_hold(tmp_path):
    assert played(tmp_path, Network, 3).policy_batch == 4
    told = plan_because(played(tmp_path, Eights, 3, attempt=2), 4)
    assert "a batch of 4 rows, the size since the job began" in told


@pytest.mark.parametrize("policy_class", [Network, type("Unseen", (Network,), {"granule": 1})])
def test_a_job_of_a_program_that_settled_nothing_goes_on_with_as_many_env_slots_as_there_are(tmp_path, policy_class):
    """A batch that is no multiple of 4 promises nothing, though it passes."""
    played(tmp_path, policy_class, 5)
    (tmp_path / "coins" / "settled.json").unlink()
    assert "batches of 5 env slots" in plan_because(played(tmp_path, policy_class, 5, attempt=2), 5)


def test_a_damaged_record_of_what_was_settled_takes_the_promise_and_not_the_job(tmp_path):
    (tmp_path / "coins").mkdir()
    (tmp_path / "coins" / "settled.json").write_text("{")
    assert "settled.json" in plan_because(played(tmp_path, Network, 5), 8)


@pytest.mark.parametrize("told", [None, "its dice are loaded"])
def test_a_policy_that_promises_nothing_is_asked_as_it_is_and_may_say_why(tmp_path, told):
    class Shrugging(Network):
        traits = PolicyTraits(reproducible=False, plan_because=told)

    assert (told or "set traits") in plan_because(played(tmp_path, Shrugging), 5)
    assert set(Shrugging.sizes) == {5}
    assert not list(tmp_path.glob("*/settled.json"))


def test_a_policy_whose_env_slots_stand_alone_is_asked_as_it_is(tmp_path):
    class Table(Network):
        traits = PolicyTraits(reproducible=True, batch_invariant=True)

    report = played(tmp_path, Table)
    assert (report.reproducible, report.policy_batch, set(Table.sizes)) == (Reproducible.BITWISE, None, {5})
    assert not list(tmp_path.glob("*/settled.json"))


class Shy(Network):
    """Can be asked nothing that is made up."""

    def get_action(self, env, observation):
        if observation["policy"]["heads"].unique().numel() > 2:
            raise ValueError("what coin is that?")
        return super().get_action(env, observation)


def test_a_policy_that_cannot_be_asked_beforehand_acts_as_ever_and_is_told_the_way_out(tmp_path):
    why = plan_because(played(tmp_path, Shy), 5)
    assert "(ValueError: what coin is that?)" in why
    assert "PolicyTraits(batch_invariant=True)" in why


class Fickle(CoinBuilder):
    """Builds environments that promise nothing."""

    def build(self, config: CoinConfig, **given) -> CoinEnvironment:
        environment = super().build(config, **given)
        environment.reproducible = False
        return environment


def test_where_the_environment_promises_nothing_neither_does_the_job(tmp_path):
    report = JobRunner(settings(tmp_path)).run(coin_job(builder=Fickle(), policy_class=Network))
    assert "the environment" in plan_because(report, report.policy_batch)


def test_a_job_that_follows_with_the_same_policy_and_environment_is_not_asked_again(tmp_path):
    runner, builder = JobRunner(settings(tmp_path)), CoinBuilder()
    steps = []
    for name in ("first", "second"):
        before = 0 if name == "first" else len(Network.sizes)
        report = runner.run(coin_job(name, builder, policy_class=Network, num_envs=4))
        steps.append(len(Network.sizes) - before)
        assert report.reproducible is Reproducible.BITWISE
    assert steps[0] - steps[1] == 5
