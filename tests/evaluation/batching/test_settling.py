"""For how many env slots a job's policy is asked, and what is promised for it, on any kind of processor."""

import json

import pytest
import torch

from isaaclab_arena.evaluation.batching import filled_up
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.storage.reports import JobReport, Reproducible
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


class Sixteens(Network):
    granule = 16


class Never(Network):
    granule = 10_000


def played(directory, policy_class=Network, num_envs=5, **changes) -> JobReport:
    runner = JobRunner(settings(directory, **changes))
    return runner.run(coin_job(policy_class=policy_class, num_envs=num_envs))


@pytest.mark.parametrize(
    ("num_envs", "sizes"),
    [(1, (1,)), (2, (4, 8, 16)), (4, (4, 8, 16)), (5, (8, 16)), (16, (16,)), (25, (28, 32)), (50, (52, 56, 64))],
)
def test_a_batch_is_filled_up_to_the_next_multiples_and_a_single_env_slot_is_not(num_envs, sizes):
    assert filled_up(num_envs) == sizes


@pytest.mark.parametrize(("policy_class", "num_envs", "batch"), [
    (Network, 1, 1), (Network, 2, 4), (Network, 5, 8), (Network, 12, 12), (Eights, 3, 8), (Eights, 12, 16),
    (Sixteens, 3, 16),
])  # fmt: skip
def test_a_network_is_asked_on_the_first_batch_on_which_places_make_no_difference(
    tmp_path, policy_class, num_envs, batch
):
    report = played(tmp_path, policy_class, num_envs)
    assert (report.error, report.reproducible, report.plan_because) == (None, Reproducible.BITWISE, None)
    assert report.policy_batch == policy_class.sizes[-1] == batch
    assert json.loads((tmp_path / "coins" / "settled.json").read_text())["policy_batch"] == batch


def test_where_no_batch_will_do_the_plan_is_promised_and_why_is_said(tmp_path):
    report = played(tmp_path, Never)
    assert (report.error, report.reproducible, report.policy_batch) == (None, Reproducible.PLAN, 8)
    assert report.plan_because == (
        "on this machine a row's answer depends on its place or its neighbours in a batch of 8 and of 16 rows; "
        "a single row has neither"
    )


def test_each_size_is_asked_for_five_times_at_most(tmp_path):
    played(tmp_path, Sixteens, 3)
    assert Sixteens.sizes[:10].count(4) <= 5
    assert Sixteens.sizes[:15].count(8) <= 5
    assert Sixteens.sizes[:15].count(16) >= 5


def test_the_batch_of_deterministic_is_filled_up_and_asked_about_as_well(tmp_path):
    report = played(tmp_path, Network, 2, policy_batch=6)
    assert (report.reproducible, report.policy_batch, set(Network.sizes)) == (Reproducible.BITWISE, 8, {8})
    report = played(tmp_path / "other", Eights, 2, policy_batch=12)
    assert (report.reproducible, report.policy_batch, Eights.sizes[-1]) == (Reproducible.BITWISE, 16, 16)


def test_all_groups_of_env_slots_are_asked_on_one_batch(tmp_path):
    report = played(tmp_path, Network, 9, pipeline=2)
    assert (report.reproducible, report.policy_batch, set(Network.sizes)) == (Reproducible.BITWISE, 8, {8})


def test_what_was_settled_is_kept_by_a_machine_on_which_it_does_not_hold(tmp_path):
    assert played(tmp_path, Network, 3).policy_batch == 4
    report = played(tmp_path, Eights, 3, attempt=2)
    assert (report.policy_batch, report.reproducible) == (4, Reproducible.PLAN)
    assert report.plan_because is not None
    assert "in a batch of 4 rows" in report.plan_because


def test_a_job_of_a_program_that_settled_nothing_goes_on_with_as_many_env_slots_as_there_are(tmp_path):
    played(tmp_path, Network, 5)
    (tmp_path / "coins" / "settled.json").unlink()
    report = played(tmp_path, Network, 5, attempt=2)
    assert (report.policy_batch, report.reproducible) == (5, Reproducible.PLAN)


class Unseen(Network):
    granule = 1


def test_a_batch_of_an_older_program_that_is_no_multiple_of_4_promises_nothing_though_it_passes(tmp_path):
    played(tmp_path, Unseen, 5)
    (tmp_path / "coins" / "settled.json").unlink()
    report = played(tmp_path, Unseen, 5, attempt=2)
    assert (report.policy_batch, report.reproducible) == (5, Reproducible.PLAN)
    assert report.plan_because is not None
    assert "on a batch of 5 rows, and where that is no multiple of 4" in report.plan_because


def test_a_damaged_record_of_what_was_settled_takes_the_promise_and_not_the_job(tmp_path):
    (tmp_path / "coins").mkdir()
    (tmp_path / "coins" / "settled.json").write_text("{")
    report = played(tmp_path, Network, 5)
    assert (report.error, report.reproducible, report.policy_batch) == (None, Reproducible.PLAN, 8)
    assert report.plan_because is not None
    assert "settled.json" in report.plan_because


def test_policies_that_promise_nothing_and_those_whose_env_slots_stand_alone_are_asked_as_they_are(tmp_path):
    class Shrugging(Network):
        traits = PolicyTraits(reproducible=False)

    class Table(Network):
        traits = PolicyTraits(reproducible=True, batch_invariant=True)

    report = played(tmp_path / "shrug", Shrugging)
    assert (report.reproducible, report.policy_batch, set(Shrugging.sizes)) == (Reproducible.PLAN, 5, {5})
    assert report.plan_because == "the policy does not say that it is reproducible"
    report = played(tmp_path / "table", Table)
    assert (report.reproducible, report.policy_batch, set(Table.sizes)) == (Reproducible.BITWISE, None, {5})
    assert not list(tmp_path.glob("*/*/settled.json"))


def test_an_object_may_say_why_it_promises_nothing(tmp_path):
    class Frank(Network):
        traits = PolicyTraits(reproducible=False, plan_because="its dice are loaded")

    assert played(tmp_path, Frank).plan_because == "its dice are loaded"


def test_a_policy_that_cannot_be_asked_beforehand_acts_as_ever_and_is_told_the_way_out(tmp_path):
    class Shy(Network):
        def get_action(self, env, observation):
            if observation["policy"]["heads"].unique().numel() > 2:
                raise ValueError("what coin is that?")
            return torch.zeros(env.num_envs, 2)

    report = played(tmp_path, Shy)
    assert (report.error, report.reproducible, report.policy_batch) == (None, Reproducible.PLAN, 5)
    assert report.plan_because is not None
    assert "(ValueError: what coin is that?)" in report.plan_because
    assert "say traits = PolicyTraits(batch_invariant=True) in its class" in report.plan_because


def test_a_policy_that_divides_its_calls_fills_none_up_where_no_size_is_settled(tmp_path):
    class Dividing(Network):
        traits = PolicyTraits(reproducible=True, serves_any_num_envs=True)
        slots: int | None = None

        def slots_per_call(self, num_envs):
            return 3

        def fill_calls_up_to(self, num_slots):
            type(self).slots = num_slots

    class Shy(Dividing):
        def get_action(self, env, observation):
            if observation["policy"]["heads"].unique().numel() > 2:
                raise ValueError("what coin is that?")
            return super().get_action(env, observation)

    class Fickle(CoinBuilder):
        def build(self, config: CoinConfig, **given) -> CoinEnvironment:
            environment = super().build(config, **given)
            environment.reproducible = False
            return environment

    # A probe that fails, and another job with the same object.
    assert (played(tmp_path / "shy", Shy).policy_batch, Shy.slots) == (3, None)
    runner, found = JobRunner(settings(tmp_path)), []
    for name, builder, config in (("one", CoinBuilder(), CoinConfig()), ("two", Fickle(), CoinConfig(success_step=9))):
        report = runner.run(coin_job(name, builder, config, policy_class=Dividing))
        found.append((report.policy_batch, Dividing.slots))
    assert found == [(4, 4), (3, None)]


def test_where_the_environment_promises_nothing_neither_does_the_job(tmp_path):
    class Fickle(CoinBuilder):
        def build(self, config: CoinConfig, **given) -> CoinEnvironment:
            environment = super().build(config, **given)
            environment.reproducible = False
            return environment

    report = JobRunner(settings(tmp_path)).run(coin_job(builder=Fickle(), policy_class=Network))
    assert report.reproducible is Reproducible.PLAN
    assert report.plan_because is not None
    assert report.plan_because.startswith("the environment does not promise")


def test_a_job_that_follows_with_the_same_policy_and_environment_is_not_asked_again(tmp_path):
    runner, builder = JobRunner(settings(tmp_path)), CoinBuilder()
    steps = []
    for name in ("first", "second"):
        before = 0 if name == "first" else len(Network.sizes)
        report = runner.run(coin_job(name, builder, policy_class=Network, num_envs=4))
        steps.append(len(Network.sizes) - before)
        assert report.reproducible is Reproducible.BITWISE
    assert steps[0] - steps[1] == 5
