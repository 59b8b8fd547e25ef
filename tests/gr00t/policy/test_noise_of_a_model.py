"""A model package that ignores what it is told about noise promises the plan, whatever it says of itself."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.queues import FixedShare
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import JobReport, Reproducible
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyArgs
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig
from tests.gr00t.fakes import DIMENSIONS, MODALITIES, LimbEnvironment, network_answer, write_policy_yaml


class Package:
    """Stands for a model package: a random network, whose noise is what ``seeds`` says."""

    honoured_options: ClassVar[frozenset[str]] = frozenset({"noise_seeds"})

    def get_action(self, observation: Any, options: Any = None) -> Any:
        return network_answer(observation, self.seeds(len(observation["state"]["arm"]), options)), {}

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        return options["noise_seeds"]

    def get_modality_config(self) -> Any:
        return MODALITIES

    def get_dimensions(self) -> Any:
        return DIMENSIONS


class Lying(Package):
    """Says that it honours seeds, and draws from torch's generator."""

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        return torch.randint(2**31, (batch_size,)).tolist()


class Ignoring(Lying):
    """Documents its options as unused, as NVIDIA's does."""

    honoured_options: ClassVar[frozenset[str]] = frozenset()

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        assert options is None
        return super().seeds(batch_size, options)


class LimbBuilder(CoinBuilder):
    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> Any:
        return LimbEnvironment(num_envs)


def played(directory: Path, package: type[Package], num_envs: int, shares: list, **options: Any) -> tuple:
    """Return the reports of ranks that share a job, and the checksums of its episodes' arrays."""
    yaml = write_policy_yaml(directory.parent, model_path="owner/name", policy_device="cpu")

    class Policy(Gr00tClosedloopPolicy):
        @classmethod
        def from_dict(cls, config_dict: Any) -> Any:
            return cls(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml, num_envs=num_envs, **options))

        def load_policy(self) -> Any:
            return package()

    job = coin_job("limb", LimbBuilder(), policy_class=Policy, num_envs=num_envs, num_episodes=8)
    reports: list[JobReport] = []
    for rank, share in enumerate(shares):
        ranks = settings(directory, rank=rank, world_size=len(shares), no_dataset=False)
        reports.append(JobRunner(ranks).run(FixedShare(job=job, share=share)))
    assert [report.error for report in reports] == [None] * len(shares)
    return reports, {line.episode_index: line.checksum for line in read_commits(directory / "limb", "limb").lines}


ALL, TWO = [((0, 8),)], [((0, 3),), ((3, 8),)]


def test_a_package_that_honours_the_noise_seeds_keeps_what_it_promises(tmp_path):
    """On any processor: with queries of one size, other ranks and other numbers of env slots give the same bits."""
    reports, alone = played(tmp_path / "one", Package, 3, ALL)
    halves, together = played(tmp_path / "two", Package, 3, TWO)
    single, one_slot = played(tmp_path / "three", Package, 1, ALL)
    promises = {report.reproducible for report in (*reports, *halves, *single)}
    assert {report.policy_batch for report in (*reports, *halves, *single)} <= {4, 8, 16}
    assert promises != {Reproducible.BITWISE} or alone == together == one_slot


@pytest.mark.parametrize(("package", "because"), [(Ignoring, "noise_seeds"), (Lying, "its neighbours")])
def test_a_package_that_ignores_it_promises_the_plan_and_says_why(tmp_path, package, because):
    [report], first = played(tmp_path / "one", package, 3, ALL)
    assert report.reproducible is Reproducible.PLAN
    assert because in (report.plan_because or "")
    # Its noise still follows from the episodes that share a query.
    torch.rand(100)
    assert played(tmp_path / "two", package, 3, ALL)[1] == first
    assert len(set(first.values())) == 8


def test_torchs_generators_are_put_back_after_each_query(tmp_path):
    yaml = write_policy_yaml(tmp_path, model_path="owner/name", policy_device="cpu")
    policy = Gr00tClosedloopPolicy(Gr00tClosedloopPolicyArgs(policy_config_yaml_path=yaml), model=Ignoring())
    shown = {
        "video": {key: np.zeros((2, 1, 4, 4, 3), np.uint8) for key in ("ego", "aside")},
        "state": {key: np.zeros((2, 1, 2), np.float32) for key in ("arm", "leg", "hand")},
        "language": {"annotation.human.task_description": [["move"]] * 2},
    }
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, again, other = (policy.query(shown, seeds)["arm"].tolist() for seeds in ([1, 2], [1, 2], [2, 1]))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == again != other


@pytest.mark.parametrize(("asked", "batch"), [(1, 1), (3, 4), (5, 8)])
def test_queries_of_one_size_are_filled_up_as_any_batch_is(tmp_path, asked, batch):
    [report], _ = played(tmp_path / "one", Package, 3, ALL, rows_per_query=asked)
    assert report.reproducible is not Reproducible.BITWISE or report.policy_batch in {batch, 8, 16}
    assert (report.policy_batch or 0) >= batch
