"""What an environment promises."""

import numpy as np
import pytest
import torch

from isaaclab_arena.environments import EnvironmentWrapper
from isaaclab_arena.environments.tasks.grasping import LIFT_OBJECT
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder, Sampler, SamplerType, Variation, completed
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from tests.evaluation.rollout.test_pipelined import Elsewhere
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment
from tests.testing.point import SeenPoint
from tests.testing.test_environment_conformance import Bare

# What an environment and a builder offer is what their classes define, and a class of one's own is never bypassed.


class Resets(Elsewhere):
    def reset(self, env_ids, conditions):
        return super().reset(env_ids, conditions)


class Passes(EnvironmentWrapper):
    """Passes on all but films."""

    film = None

    def reset(self, env_ids, conditions):
        return self.real.reset(env_ids, conditions)

    def step(self, action):
        return self.real.step(action)


def test_work_elsewhere_is_set_aside_below_a_reset_of_ones_own_until_that_class_has_it_too(caplog):
    begins_again = type("BeginsAgain", (Resets,), {"background": property(lambda self: self)})
    backgrounds = [made(CoinConfig(), 1).background for made in (Elsewhere, Resets, begins_again)]
    assert [each is None for each in backgrounds] == [False, True, False]
    assert Passes(Elsewhere(CoinConfig(), 1)).background is None
    with caplog.at_level("INFO"):
        type("Own", (Elsewhere,), {"step": CoinEnvironment.step, "reset": CoinEnvironment.reset})
    assert caplog.messages == ["Own has a 'step' of its own, so 'background' of its base is ignored"]


def test_an_environment_that_offers_nothing_more_says_so():
    environment = Bare(2)
    assert (environment.state(), environment.state_parts(), environment.snapshot()) == (None, (), None)
    assert environment.episode_states([1, 0]) == [{}, {}]
    assert environment.solved_at_start([0, 1]) == [False, False]
    assert environment.episode_events([0], [True]) == [None]
    assert environment.start_errors([0]) == {}
    assert (environment.filmable, environment.pictures_drawn, environment.background) == ((), None, None)
    with pytest.raises(KeyError):
        environment.film([0], ["viewport"])
    with pytest.raises(TypeError):
        environment.restore_snapshot({})
    conditions = [environment.draw_conditions(np.random.default_rng(0))]
    restored = environment.restore(torch.tensor([0]), conditions, [{}])
    assert torch.equal(
        restored["policy"]["position"], environment.reset(torch.tensor([0]), conditions)["policy"]["position"]
    )


def test_a_wrapper_offers_what_the_environment_offers_but_what_it_sets_to_none():
    real = SeenPoint(2)
    wrapper = Passes(real)
    assert wrapper.state_parts()[0] is real.state_parts()[0]
    assert (real.filmable, wrapper.filmable) == (("viewport",), ())
    for film in (wrapper.film, wrapper.film_later):
        with pytest.raises(KeyError):
            film([0], real.filmable)


@pytest.mark.parametrize("base", [SeenPoint, EnvironmentWrapper])
def test_an_environment_withdraws_what_it_sets_to_none_and_what_means_nothing_without_it(base):
    none = dict.fromkeys(("state", "restore", "restore_snapshot", "film", "draw_pictures_of"))
    made = {name: getattr(Passes, name) for name in ("reset", "step")} if base is EnvironmentWrapper else {}
    silent = type("Silent", (base,), {**none, **made})
    environment = silent(2 if base is SeenPoint else DrawnOnDemand(SeenPoint(2)))
    assert (environment.state(), environment.state_parts(), environment.snapshot()) == (None, (), None)
    assert (environment.episode_states([0]), environment.filmable, environment.pictures_drawn) == ([{}], (), None)


class Duck:
    """A builder of others, which derives from nothing."""

    config_class = CoinConfig

    def check(self, config) -> None: ...

    def build(self, config, *, num_envs, device, num_threads):
        return CoinEnvironment(config, num_envs)

    def num_episodes(self, config) -> int:
        return 7


def test_a_builder_of_others_gets_the_defaults_of_what_it_does_not_have():
    duck, own = Duck(), CoinBuilder()
    whole = completed(duck)
    assert (whole.own, completed(own), own.own) == (duck, own, own)
    assert (whole.config_class, whole.num_episodes(CoinConfig()), whole.counts_episodes) == (CoinConfig, 7, True)
    assert (whole.variations(CoinConfig()), whole.sample(CoinConfig()), whole.has_backends) == ((), None, False)
    assert (whole.foreign_code(CoinConfig()), whole.loads_code) == ((), False)
    assert completed(type("Loads", (Duck,), {"foreign_code": lambda *_: []})()).loads_code
    built = whole.build(CoinConfig(), num_envs=3, device=torch.device("cpu"), num_threads=1)
    assert built.num_envs == 3
    with pytest.raises(TypeError, match="no backends"):
        whole.faster_backend(CoinConfig(), num_envs=1, device=torch.device("cpu"), num_threads=1)

    class Varies(EnvironmentBuilder):
        def faster_backend(self, config, *, num_envs, device, num_threads, variations: tuple[Variation, ...] = ()):
            return "mujoco"

    assert Varies().has_backends


class Served(EnvironmentBuilder):
    """A builder that serves as its class."""

    config_class = CoinConfig

    @classmethod
    def build(cls, config, *, num_envs, device, num_threads):  # pyright: ignore[reportIncompatibleMethodOverride]
        return CoinEnvironment(config, num_envs)


class PassesOn:
    """A builder that has everything of another one."""

    def __getattr__(self, name):
        return getattr(CoinBuilder(), name)


def test_what_a_builder_sets_to_none_it_does_not_offer():
    duck = completed(type("Uncounted", (Duck,), {"num_episodes": None, "faster_backend": None})())
    own = type("Own", (type(LIFT_OBJECT),), {"faster_backend": None, "variations": None})
    for builder in (duck, completed(Served), completed(PassesOn())):
        assert (builder.counts_episodes, builder.has_backends) == (False, False)
        assert builder.num_episodes(CoinConfig()) is None
        assert builder.build(CoinConfig(), num_envs=2, device=torch.device("cpu"), num_threads=1).num_envs == 2
    assert (own.has_backends, own.variations) == (False, EnvironmentBuilder.variations)


def stream(index: int, name: str = "cube.mass", seed: int = 0) -> np.random.Generator:
    return Episode(job="any", episode_index=index, seed=seed).variation_generator(name)


def draws(sampler: Sampler, number: int = 2000) -> list:
    return [sampler.draw(stream(index), index) for index in range(number)]


def test_uniform_draws_fill_their_range_which_stretches_the_same_draws():
    values = np.array(draws(Sampler(low=(0.1, -1.0), high=(0.3, 1.0))))
    assert values.min(0) == pytest.approx([0.1, -1.0], abs=0.01)
    assert values.max(0) == pytest.approx([0.3, 1.0], abs=0.01)
    assert values.mean(0) == pytest.approx([0.2, 0.0], abs=0.05)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.1
    wider = np.array(draws(Sampler(low=(0.1, -2.0), high=(0.3, 2.0))))
    assert np.allclose(wider, values * (1, 2))


CHOICES = ((1.0,), (2.0,), (4.0,))


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        (Sampler(low=(1.0,), high=(3.0,)), {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}),
        (Sampler(type=SamplerType.CHOICE, choices=CHOICES), {1.0: 1 / 3, 2.0: 1 / 3, 4.0: 1 / 3}),
        (Sampler(type=SamplerType.CATEGORICAL, choices=CHOICES, probabilities=(0.7, 0.0, 0.3)), {1.0: 0.7, 4.0: 0.3}),
        (Sampler(type=SamplerType.BERNOULLI, low=(0.0,), high=(1.0,), p=0.2), {0.0: 0.8, 1.0: 0.2}),
    ],
)
def test_draws_are_as_likely_as_they_should_be(sampler, shares):
    kind = type(next(iter(shares)))
    variation = Variation(asset="a", name="b", unit="", description="", sampler=sampler, integer=kind is int)
    values = [variation.draw(stream(index), index) for index in range(2000)]
    assert {value: values.count(value) / 2000 for value in set(values)} == pytest.approx(shares, abs=0.04)
    assert {type(value) for value in values} == {kind}


def test_choices_in_turn_go_by_the_episode_and_a_sampler_tells_all_its_numbers():
    sampler = Sampler(type=SamplerType.SEQUENTIAL_CHOICE, choices=CHOICES)
    assert draws(sampler, 5) == [(1.0,), (2.0,), (4.0,), (1.0,), (2.0,)]
    assert Sampler(low=(0.1, -1.0), high=(0.3, 1.0)).numbers == (0.1, -1.0, 0.3, 1.0)
    assert Sampler(type=SamplerType.CHOICE, choices=((1.0,), "mug", (4.0,))).numbers == (1.0, 4.0)


def test_streams_differ_by_variation_episode_and_seed_and_never_change():
    assert stream(5).random() == 0.18151747839080434
    others = [stream(5), stream(4), stream(5, "cube.size"), stream(5, seed=1)]
    assert len({each.random() for each in others}) == 4


@pytest.mark.parametrize(
    ("value", "wrong"),
    [((0.0, 0.0, -1.0), None), ((0.0, 0.0, 0.0), "must not be all zeros"), ((0.0, 0.0, 99.0), "must be -10 to 10")],
)
def test_a_direction_has_a_direction(value, wrong):
    sampler = Sampler(low=(0.0, 0.0, -1.0), high=(0.0, 0.0, -1.0))
    named = {"asset": "light", "name": "direction", "unit": "", "description": "", "sampler": sampler}
    assert Variation(**named, minimum=-10.0, maximum=10.0, sizes=(3,), is_direction=True).wrong_with(value) == wrong
