"""A stranger's environment and policy may use names for themselves that are offers of this project's classes."""

from dataclasses import replace
from unittest import SkipTest

import pytest
import torch

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.storage.reports import ReportedStatus
from isaaclab_arena.testing import EnvironmentConformance
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy
from tests.fakes_environment import episodes
from tests.testing.one_rule import rule


class OwnEnvironment(CoinEnvironment):
    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self.background = "white.png"
        self.metrics = {"distance": []}  # pyright: ignore[reportAttributeAccessIssue]

    def _own(self, path):
        raise AssertionError(f"{path} is of no concern to others")

    # Each is one of two methods that are offered together.
    try_step = restore = snapshot = _own  # pyright: ignore[reportAssignmentType]


class OwnBuilder(CoinBuilder):
    def build(self, config, *, num_envs, device, num_threads):
        return OwnEnvironment(config, num_envs)


class OwnPolicy(ShrugPolicy):
    def __init__(self, config=None) -> None:
        super().__init__(config)
        self.network = torch.nn.Linear(1, 1)
        taken = "planned look chunks chunk_traits connections slots_per_call fill_calls_up_to episode_metrics"
        for name in f"{taken} act_in_some pictures_to_see".split():
            setattr(self, name, [name])


class Announcing(ShrugPolicy):
    def pictures_to_see(self, env, starting):
        raise AssertionError("there is no camera")


def test_no_policy_is_asked_for_pictures_of_an_environment_without_a_renderer(tmp_path):
    report = JobRunner(settings(tmp_path)).run(coin_job(policy_class=Announcing))
    assert (report.status, report.error) == (ReportedStatus.COMPLETED, None)


def test_own_attributes_of_any_name_do_not_offer_anything(tmp_path):
    report = JobRunner(settings(tmp_path, pipeline=2)).run(coin_job(builder=OwnBuilder(), policy_class=OwnPolicy))
    assert (report.status, report.error) == (ReportedStatus.COMPLETED, None)


def test_own_methods_of_any_name_are_not_called():
    environment = OwnEnvironment(CoinConfig(), 1)
    for each in (*episodes(1), replace(*episodes(1), start_state={})):
        assert rollout(environment, ShrugPolicy(), [each], []).finished_episodes == 1


def test_conformance_leaves_own_names_alone():
    def made(name):
        return rule(EnvironmentConformance, name, make=lambda _, num_envs: OwnEnvironment(CoinConfig(), num_envs))

    made("steps_have_the_shapes_of_the_contract")()
    for name in ("a_snapshot_brings_everything_back", "a_recorded_episode_starts_again_exactly"):
        with pytest.raises(SkipTest, match="not offered"):
            made(name)()
