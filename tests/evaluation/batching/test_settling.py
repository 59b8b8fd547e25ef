"""For how many env slots a job's policy is asked, and what is promised for it, on any kind of processor."""

import copy
import json
from collections.abc import Sequence

import pytest
import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.batching import FixedBatchPolicy, WideView, batch_of, on_fixed_batch, padded
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.storage.ledger import JobReport, Reproducible
from tests.environments.building import build
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, Notebook, ShrugPolicy
from tests.fakes_environment import episodes


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
    """Return the reason that a job promises no more than its plan."""
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


def test_the_policy_sees_one_environment_of_the_fixed_size():
    """Policies tell environments apart by identity: a new one each time would have them begin anew each time."""

    class Curious(ShrugPolicy):
        def get_action(self, env, observation):
            environments.append(env)
            assert {term.shape for term in observation["policy"].values()} == {(8, 1)}
            assert float(observation["policy"]["clock"][3:].sum()) == 0.0
            action = torch.zeros(env.unwrapped.action_space.shape)
            # NaN behind the real env slots is of no concern.
            action[3:] = torch.nan
            return action

    environments, notebook = [], Notebook()
    rollout(CoinEnvironment(CoinConfig(), 3), FixedBatchPolicy(Curious(), 8), episodes(9), [notebook])
    assert len(notebook.records) == 9
    assert len({id(environment) for environment in environments}) == 1
    assert environments[0].num_envs == 8
    assert {transition.action.shape for transition in notebook.transitions} == {(3, 2)}


def test_what_the_policy_says_of_itself_is_passed_on():
    said = {"has_length": True, "length": 7, "num_episodes": 5}
    methods = {name: lambda self, answer=answer: answer for name, answer in said.items()}
    asked = {"can_play": lambda self, index: index < 5, "set_task_description": lambda self, words: f"gently {words}"}
    asked["episode_metrics"] = lambda self, env_id: {"slot": float(env_id)}
    inner = type("Long", (ShrugPolicy,), {**methods, **asked, "is_remote": True})()
    policy = FixedBatchPolicy(inner, 8)
    assert {name: getattr(policy, name)() for name in said} == said
    assert (policy.can_play(4), policy.can_play(5), policy.is_remote) == (True, False, True)
    assert policy.set_task_description("push") == "gently push"
    assert policy.episode_metrics(2) == {"slot": 2.0}
    policy.close()
    assert inner.closed


def test_a_policy_may_look_at_the_environment_but_not_act_on_it():
    real = CoinEnvironment(CoinConfig(), 3)
    view = WideView(real, 8)
    assert view.num_draws == 0
    assert view.state()["rigid_object"]["coin"]["root_pose"].shape == (8, 7)
    assert view.action_space.shape == (8, 2)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = view.no_such_thing
    with pytest.raises(PolicyError, match="must not step"):
        view.step(torch.zeros(8, 2))
    with pytest.raises(PolicyError, match="must not reset"):
        view.reset(torch.tensor([0]), [{}])


def test_a_view_of_a_simulation_shows_the_simulation_and_so_does_its_copy():
    real = build("reach", num_envs=2)
    view = WideView(real, 8)
    for name in ("backend", "robot", "task_name", "restore", "episode_states", "filmable", "pictures_drawn"):
        assert getattr(copy.copy(view), name) == getattr(view, name) == getattr(real, name)
    assert not hasattr(WideView(CoinEnvironment(CoinConfig(), 2), 8), "backend")
    real.close()


def test_padding_gives_every_tensor_one_layout_and_memory_of_its_own():
    pictures = torch.arange(24, dtype=torch.uint8).reshape(1, 2, 3, 4).permute(0, 3, 1, 2)
    tree = {"policy": {"a": torch.ones(2, 3)}, "camera_obs": {"front": pictures.expand(2, -1, -1, -1)}, "note": "x"}
    for num_envs in (2, 5):
        wide = padded(tree, num_envs)
        assert wide["note"] == "x"
        assert wide["camera_obs"]["front"].is_contiguous()
        assert torch.equal(wide["camera_obs"]["front"][:2], tree["camera_obs"]["front"])
        assert not wide["policy"]["a"][2:].any()
        wide["policy"]["a"].fill_(7.0)
    assert torch.equal(tree["policy"]["a"], torch.ones(2, 3))


def test_a_batch_smaller_than_the_job_is_refused():
    assert batch_of(ShrugPolicy.traits, 64, num_envs=64) == 64
    with pytest.raises(ConfigError, match="--policy_batch 16"):
        batch_of(ShrugPolicy.traits, 8, num_envs=16)


CALLS_NUM_EPISODES = 9


class Diary(PolicyBase[None]):
    """Writes down what it is told of, without what belongs to the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, object]] = []
        self.seen: list[Environment] = []

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self.seen.append(env)
        self.lines.append(("start", [(start.env_id, start.episode.episode_index) for start in starts]))
        super().start_episodes(env, starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        self.seen.append(env)
        self.lines.append(("end", list(env_ids)))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        self.lines.append(("reset", None if env_ids is None else env_ids.tolist()))

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.seen.append(env)
        return torch.zeros(env.num_envs, *env.action_spec.shape)

    def finished(self) -> torch.Tensor | None:
        env = self.seen[-1]
        return torch.arange(env.num_envs) == 1 if len(self.seen) % 7 == 0 else None


def diary(policy_batch: int | None, num_envs: int = 3) -> Diary:
    policy = Diary()
    rollout(
        CoinEnvironment(CoinConfig(), num_envs), on_fixed_batch(policy, policy_batch), episodes(CALLS_NUM_EPISODES), []
    )
    return policy


@pytest.mark.parametrize("policy_batch", [3, 4, 8])
def test_a_policy_is_told_of_the_same_starts_ends_and_resets_as_without_padding(policy_batch):
    plain = diary(None).lines
    assert {kind for kind, _ in plain} == {"start", "end", "reset"}
    assert diary(policy_batch).lines == plain
