"""A stranger's environment and policy may use names for themselves that are offers of this project's classes."""

import torch

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.storage.commits import ReportedStatus
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy


class OwnEnvironment(CoinEnvironment):
    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self.background = "white.png"
        self.metrics = {"distance": []}  # pyright: ignore[reportAttributeAccessIssue]


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


def test_own_attributes_of_any_name_do_not_offer_anything(tmp_path):
    report = JobRunner(settings(tmp_path, num_groups=2)).run(coin_job(builder=OwnBuilder(), policy_class=OwnPolicy))
    assert (report.status, report.error) == (ReportedStatus.COMPLETED, None)
