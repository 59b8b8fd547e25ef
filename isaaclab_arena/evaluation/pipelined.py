"""The loop for groups of env slots that take turns: one is simulated while the policy acts for another."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait as wait_for_pipes
from typing import TypeAlias

import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.policy_answers import Phase, PolicyAnswer, Stopwatch
from isaaclab_arena.evaluation.rollout import EpisodeLoop, attempt_of
from isaaclab_arena.evaluation.running_episodes import NO_LIMITS, RolloutLimits, RolloutResult
from isaaclab_arena.interfaces.background import Background, background_of
from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase

# Control steps of one environment on a thread or in workers, while the policy acts for another environment.


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A step that was made on another thread."""

    step: Step
    taken_s: float  # duration [s]
    rendered_s: float  # part of it for pictures [s]
    done: torch.cuda.Event | None  # when the GPU has finished it


def wait_for_one(steppings: Sequence["Stepping"]) -> None:
    """Wait until one of the steps is done; all environments must be of the same kind."""
    threads = [each.under_way for each in steppings if isinstance(each, BackgroundStepping)]
    if threads:
        wait_for_futures(threads, return_when=FIRST_COMPLETED)
        return
    elsewhere = [each for each in steppings if isinstance(each, SteppingElsewhere)]
    while not any(each.is_done for each in elsewhere):
        # A worker that never answers counts as done once it is late.
        wait_for_pipes([pipe for each in elsewhere for pipe in each.background.unanswered], 0.1)


class SteppingElsewhere:
    """Has the environment's own processes make the steps, without a thread."""

    # No other code uses the environment between `begin` and `finish`.
    def __init__(self, background: Background, stopwatch: Stopwatch) -> None:
        self.background, self._stopwatch = background, stopwatch
        self._is_under_way = False

    @property
    def is_done(self) -> bool:
        """Whether all processes have answered, so that `finish` does not wait."""
        return not self.background.unanswered

    def begin(self, action: torch.Tensor) -> None:
        """Begin a step. Shape of `action`: (num_envs, action_dim)."""
        with self._stopwatch.measure(Phase.SIMULATE):
            self.background.begin_step(action)
        self._is_under_way = True

    def finish(self) -> Step:
        """Wait for the step, and return it. The stopwatch counts only this wait: the overlap costs nothing."""
        self._is_under_way = False
        with self._stopwatch.measure(Phase.SIMULATE):
            return self.background.finish_step()

    def close(self) -> None:
        """Wait for a step under way: its answer must not be taken for that of another request."""
        if self._is_under_way:
            # The caller may close because of an error, which counts more than an error of this step.
            with suppress(Exception):
                self.finish()


class BackgroundStepping:
    """Makes steps on its own thread, and in its own stream of a GPU, so that neither waits for the policy."""

    # No other code uses the environment between `begin` and `finish`.
    def __init__(self, environment: Environment, stopwatch: Stopwatch) -> None:
        self._environment, self._stopwatch = environment, stopwatch
        self._under_way: Future[_Made] | None = None
        is_gpu = environment.device.type == "cuda"
        self._stream = torch.cuda.Stream(environment.device) if is_gpu else None
        # Each thread has its own current GPU, by default the first one, which may be another rank's.
        begin = partial(torch.cuda.set_device, environment.device) if is_gpu else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulation", initializer=begin)

    @property
    def under_way(self) -> Future[_Made]:
        """The step that was begun; `RuntimeError` if none was."""
        if self._under_way is None:
            raise RuntimeError("no step was begun")
        return self._under_way

    @property
    def is_done(self) -> bool:
        """Whether the thread has made the step, so that `finish` does not wait."""
        return self.under_way.done()

    def begin(self, action: torch.Tensor) -> None:
        """Begin a step. Shape of `action`: (num_envs, action_dim)."""
        # The event happens once the GPU has finished everything that the policy has queued so far.
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            torch.cuda.current_stream(self._stream.device).record_event(ready)
        self._under_way = self._thread.submit(self._make, action, ready)

    def finish(self) -> Step:
        """Wait for the step, and return it. The stopwatch counts only this wait: the overlap costs nothing."""
        under_way, self._under_way = self.under_way, None
        began_s = self._stopwatch.elapsed_s()
        made = under_way.result()
        waited_s = self._stopwatch.elapsed_s() - began_s
        # Of the wait, rendering gets the same share as of the step.
        render_share = made.rendered_s / made.taken_s if made.taken_s > 0 else 0.0
        self._stopwatch.add(Phase.RENDER, waited_s * render_share)
        self._stopwatch.add(Phase.SIMULATE, waited_s * (1.0 - render_share))
        if self._stream is not None and made.done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(made.done)
        return made.step

    def close(self) -> None:
        """Wait for a step under way, and end the thread."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            # The caller may close because of an error, which counts more than an error of this step.
            with suppress(BaseException):
                under_way.result()
        self._thread.shutdown()

    # torch's gradient mode is per thread.
    @torch.no_grad()
    def _make(self, action: torch.Tensor, ready: torch.cuda.Event | None) -> _Made:
        if self._stream is not None and ready is not None:
            self._stream.wait_event(ready)
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            began_s, rendered_s = self._stopwatch.elapsed_s(), self._environment.render_s
            step = attempt_of(self._environment)(action)
            taken_s, rendered_s = self._stopwatch.elapsed_s() - began_s, self._environment.render_s - rendered_s
            done = None
            if self._stream is not None:
                done = torch.cuda.Event()
                self._stream.record_event(done)
            return _Made(step=step, taken_s=taken_s, rendered_s=rendered_s, done=done)


Stepping: TypeAlias = SteppingElsewhere | BackgroundStepping


# The loop for groups of env slots that take turns: while one group is simulated, the policy acts for another.


@dataclass(frozen=True, kw_only=True)
class EnvGroup:
    """Env slots that are simulated together and share the calls of a policy."""

    environment: Environment
    policy: PolicyBase  # remembers the episodes of this group only


def group_sizes(num_envs: int, num_groups: int) -> list[int]:
    """Divide env slots into groups of equal size; the first groups have one more if needed."""
    size, left = divmod(num_envs, num_groups)
    return [size + (group < left) for group in range(num_groups)]


@torch.no_grad()
def pipelined_rollout(
    groups: Sequence[EnvGroup],
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> RolloutResult:
    """Run episodes in groups of env slots; see `rollout` for the arguments and errors."""
    # Every group may make `max_steps`; `max_envs` is shared among them. Policies and observers are called in the
    # caller's thread only; steps are made in other threads or in workers.
    pending, watch = iter(episodes), stopwatch or Stopwatch()
    taking_turns: list[_GroupTurns] = []
    try:
        with ExitStack() as stack:
            for group in groups:
                common = pending, observers, language_instruction, limits, watch
                loop = stack.enter_context(closing(EpisodeLoop(group.environment, group.policy, *common)))
                background = background_of(group.environment)
                stepping = (
                    BackgroundStepping(group.environment, watch)
                    if background is None
                    else SteppingElsewhere(background, watch)
                )
                taking_turns.append(_GroupTurns(loop, stack.enter_context(closing(stepping))))

            # The limit of env slots is divided evenly among the groups.
            num_envs = [group.environment.num_envs for group in groups]
            sizes = group_sizes(limits.num_used(sum(num_envs)), len(groups))
            for group, size, most in zip(taking_turns, sizes, num_envs, strict=True):
                group.loop.reset(range(min(size, most)))

            # Results must not depend on the speed of a group, so the order of turns is fixed. Only if each policy
            # answers by the episode alone, and no number of steps ends the rollout, the group that is ready goes first.
            traits = [group.policy.traits for group in groups]
            in_order = limits.max_steps is not None or not all(
                each.reproducible and each.batch_invariant for each in traits
            )
            interrupted = _take_turns(taking_turns, stop_requested, watch, in_order=in_order)
    except PolicyLostError as error:
        for group in taking_turns:
            group.loop.end_lost_episodes(error)
        raise
    results = [group.loop.episodes.result(interrupted=interrupted) for group in taking_turns]
    return RolloutResult(
        finished_episodes=sum(result.finished_episodes for result in results),
        cut_episodes=sum(result.cut_episodes for result in results),
        env_steps=sum(result.env_steps for result in results),
        interrupted=interrupted,
    )


def _take_turns(
    groups: Sequence["_GroupTurns"], stop_requested: Callable[[], bool], stopwatch: Stopwatch, *, in_order: bool
) -> bool:
    """Let groups take turns until nothing is left to do. True if a stop request ended it early."""
    interrupted = False
    while not interrupted and any(group.is_stepping or group.loop.may_step for group in groups):
        turn = groups
        if not in_order:
            # Take the groups that need not wait for a step. If there is none, wait for the first.
            if all(group.is_stepping or not group.loop.may_step for group in groups):
                with stopwatch.measure(Phase.SIMULATE):
                    wait_for_one([group.stepping for group in groups if group.is_stepping])
            turn = [group for group in groups if not group.is_stepping or group.stepping.is_done]
        for group in turn:
            group.loop.reset(group.finish_step())
            if not group.loop.may_step:
                continue
            interrupted = stop_requested()
            if interrupted:
                break
            group.begin_step()
    for group in groups:
        group.finish_step()
    return interrupted


class _GroupTurns:
    """The turns of one group: the action of one turn is simulated until the next."""

    def __init__(self, loop: EpisodeLoop, stepping: Stepping) -> None:
        self.loop = loop
        self.stepping = stepping
        self._answer: PolicyAnswer | None = None

    @property
    def is_stepping(self) -> bool:
        """Whether a step was begun and not finished."""
        return self._answer is not None

    def begin_step(self) -> None:
        """Ask the policy, and begin the step of its answer."""
        answer = self.loop.act()
        self.stepping.begin(answer.action)
        self._answer = answer

    def finish_step(self) -> Sequence[int]:
        """Finish the step under way, if any; return the env slots whose episodes ended with it."""
        answer, self._answer = self._answer, None
        return () if answer is None else self.loop.finish_step(answer, self.stepping.finish())
