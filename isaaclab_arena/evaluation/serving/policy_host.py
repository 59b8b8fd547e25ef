"""Answer the queries of all sessions: those that wait together go to the policy in one call, on one thread."""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from isaaclab_arena.errors import ArenaError, PolicyError, first_line
from isaaclab_arena.evaluation.serving.hosted_policy import BegunEpisode, HostedPolicy, SlotAnswer
from isaaclab_arena.evaluation.serving.observations import (
    ObservationRefusedError,
    SlotObservation,
    checked_observation,
)
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.pictures import CAMERAS


class HostFullError(ArenaError):
    """Every env slot of a served policy has a session. Whoever runs the server can give it more."""


@dataclass(frozen=True, kw_only=True)
class HostStatistics:
    """What a host has done so far.

    Attributes:
        sessions: Sessions at this moment.
        queries: Queries that were answered.
        calls: Calls of the policy that answered them.
        waited_s: How long the queries have waited for their call, added up [s].
        busy_s: How long the calls took, added up [s].
        open_s: How long the host is open [s].
    """

    sessions: int
    queries: int
    calls: int
    waited_s: float
    busy_s: float
    open_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """A query that waits for its call.

    Attributes:
        env_id: The env slot.
        begun: The episode that begins with it, None if it goes on.
        observation: What the env slot shows.
        arrived_s: When it came, on the clock of `time.perf_counter` [s].
        answer: Gets what the policy answers.
    """

    env_id: int
    begun: BegunEpisode | None
    observation: SlotObservation
    arrived_s: float
    answer: "Future[SlotAnswer]" = field(default_factory=Future)


class PolicyHost:
    """Asks a policy for sessions, each of which has an env slot of its own.

    One thread asks the policy. It waits a moment for the sessions whose episode is under way, so that their queries
    share a call. Where each env slot has a policy of its own, a call is one query, and nothing waits for others. A
    session has one query at a time, so no more than one query of each env slot ever waits.

    Args:
        policy: The policy; the host closes it.
        max_batch: Most queries of one call.
        max_wait_s: How long the first query of a call waits for others [s].

    Attributes:
        policy: The policy.
        failure: Why nothing is answered any more, None where nothing went wrong.
    """

    def __init__(self, policy: HostedPolicy, *, max_batch: int = 64, max_wait_s: float = 0.005) -> None:
        self.policy = policy
        self._max_batch, self._max_wait_s = max_batch if policy.acts_together else 1, max_wait_s
        self._changed = threading.Condition()
        self._free = list(range(policy.num_slots))
        self._playing: set[int] = set()
        self._begun: set[int] = set()
        self._waiting: deque[_Waiting] = deque()
        self._ended: deque[tuple[int, bool]] = deque()
        self._is_closed = False
        self.failure: str | None = None
        self._queries, self._calls, self._waited_s, self._busy_s = 0, 0, 0.0, 0.0
        self._since_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="policy host", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is answered any more."""
        return self._is_closed

    def check_room(self) -> None:
        """Refuse another session where every env slot has one.

        Raises:
            HostFullError: If that is so.
        """
        if self._is_closed or not self._free:
            num_slots = self.policy.num_slots
            raise HostFullError(f"all {num_slots} env slots of the served policy are taken; try again later")

    def open(self) -> "HostSession":
        """Return a session with a free env slot.

        Raises:
            HostFullError: If there is none.
        """
        with self._changed:
            self.check_room()
            return HostSession(self, self._free.pop(0))

    def statistics(self) -> HostStatistics:
        """Return what was done so far."""
        with self._changed:
            return HostStatistics(
                sessions=self.policy.num_slots - len(self._free),
                queries=self._queries,
                calls=self._calls,
                waited_s=self._waited_s,
                busy_s=self._busy_s,
                open_s=time.perf_counter() - self._since_s,
            )

    def close(self) -> None:
        """Answer what waits with an error, and close the policy. May be called more than once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, env_id: int, begun: BegunEpisode | None, observation: SlotObservation) -> "Future[SlotAnswer]":
        """Let a query of an env slot wait for its call; only its session may ask, and only when it was answered."""
        waiting = _Waiting(env_id=env_id, begun=begun, observation=observation, arrived_s=time.perf_counter())
        with self._changed:
            if self._is_closed:
                raise PolicyError("the policy is no longer served")
            self._waiting.append(waiting)
            self._changed.notify_all()
        return waiting.answer

    def begin(self, env_id: int) -> None:
        """Wait for the queries of an env slot from now on, whose session begins an episode."""
        with self._changed:
            self._playing.add(env_id)

    def end(self, env_id: int, *, is_freed: bool) -> None:
        """End the episode of an env slot, before anything else happens there; with ``is_freed`` also its session."""
        with self._changed:
            self._playing.discard(env_id)
            self._ended.append((env_id, is_freed))
            self._changed.notify_all()

    def _run(self) -> None:
        batch: Sequence[_Waiting] = ()
        try:
            while self._wait():
                ended, batch = self._taken()
                for env_id in self._begun.intersection(env_id for env_id, _ in ended):
                    self._begun.discard(env_id)
                    self.policy.end(env_id)
                self._give_back([env_id for env_id, is_freed in ended if is_freed])
                if batch:
                    self._answer(batch)
        except Exception as error:
            self.failure = first_line(error)
            raise
        finally:
            with self._changed:
                self._is_closed = True
                left = [waiting for waiting in (*batch, *self._waiting) if not waiting.answer.done()]
            for waiting in left:
                waiting.answer.set_exception(PolicyError("the policy is no longer served"))
            self.policy.close()

    def _wait(self) -> bool:
        """Wait for something to do and for others to join it; return False where the host is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting or self._ended)
            if self._waiting and not self._is_closed:
                left_s = self._waiting[0].arrived_s + self._max_wait_s - time.perf_counter()
                self._changed.wait_for(self._need_not_wait, timeout=max(0.0, left_s))
            return not self._is_closed

    def _need_not_wait(self) -> bool:
        return self._is_closed or len(self._waiting) >= min(self._max_batch, len(self._playing))

    def _taken(self) -> tuple[Sequence[tuple[int, bool]], Sequence[_Waiting]]:
        with self._changed:
            ended, self._ended = self._ended, deque()
            return ended, [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]

    def _give_back(self, env_ids: Sequence[int]) -> None:
        with self._changed:
            self._free += env_ids

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        began_s = time.perf_counter()
        answers = self._answers(batch)
        with self._changed:
            self._queries += len(batch)
            self._calls += 1
            self._waited_s += sum(began_s - waiting.arrived_s for waiting in batch)
            self._busy_s += time.perf_counter() - began_s
        for waiting in batch:
            answer = answers[waiting.env_id]
            if isinstance(answer, SlotAnswer):
                waiting.answer.set_result(answer)
            else:
                waiting.answer.set_exception(answer)

    def _answers(self, batch: Sequence[_Waiting]) -> Mapping[int, SlotAnswer | Exception]:
        answers: dict[int, SlotAnswer | Exception] = {}
        for waiting in batch:
            try:
                if waiting.begun is not None:
                    self._begun.add(waiting.env_id)
                    self.policy.start(waiting.env_id, waiting.begun)
            except Exception as error:  # noqa: BLE001  what one client begins must not stop the others
                answers[waiting.env_id] = error
        shown = {waiting.env_id: waiting.observation for waiting in batch if waiting.env_id not in answers}
        return {**answers, **(self.policy.act(shown) if shown else {})}


class HostSession:
    """A client's env slot in a served policy. It belongs to one thread."""

    def __init__(self, host: PolicyHost, env_id: int) -> None:
        self.env_id = env_id
        self._host = host
        self._begun: BegunEpisode | None = None
        self._is_playing = False
        self._is_open = True
        self.looks_next = host.policy.looks_first

    @property
    def is_playing(self) -> bool:
        """Whether an episode is under way."""
        return self._is_playing

    def start_episode(self, episode: Episode, instruction: str | None = None) -> None:
        """Begin an episode with the next query; one that is under way ends.

        Args:
            episode: Which episode, and so which random streams.
            instruction: What is to be done, None for what the job or the environment says.
        """
        self.end_episode()
        self._begun = BegunEpisode(episode=episode, instruction=instruction)
        self._is_playing = True
        self._host.begin(self.env_id)
        self.looks_next = self._host.policy.looks_first

    def ask(self, observation: Mapping[str, Any]) -> "Future[SlotAnswer]":
        """Ask for the next action, and return what will hold the answer; `answered` waits for it.

        Args:
            observation: Group, then term, then array; see `checked_observation`.

        Raises:
            ObservationRefusedError: If the observation is wrong; the episode can go on with another.
            PolicyError: If no episode is under way, or the policy is no longer served.
        """
        if not self._is_playing:
            raise PolicyError("no episode is under way in this session; begin one first")
        spec = self._host.policy.observation_spec
        checked = checked_observation(observation, spec)
        if self.looks_next and spec.get(CAMERAS) and CAMERAS not in checked:
            raise ObservationRefusedError(f"the observation lacks '{CAMERAS}', at which the policy looks now")
        answer = self._host.submit(self.env_id, self._begun, checked)
        self._begun = None
        return answer

    def answered(self, answer: "Future[SlotAnswer]") -> SlotAnswer:
        """Wait for an answer and return it.

        Raises:
            PolicyError: If the policy failed. Then the episode is over.
        """
        try:
            found = answer.result()
        except Exception:
            self.end_episode()
            raise
        self.looks_next = found.looks_next
        return found

    def act(self, observation: Mapping[str, Any]) -> SlotAnswer:
        """Return the answer to an observation; see `ask` and `answered`."""
        return self.answered(self.ask(observation))

    def end_episode(self) -> None:
        """End the episode, if one is under way."""
        if self._is_playing:
            self._is_playing, self._begun = False, None
            self._host.end(self.env_id, is_freed=False)

    def close(self) -> None:
        """End the session, and give its env slot back. May be called more than once."""
        if self._is_open:
            self._is_open, self._is_playing = False, False
            self._host.end(self.env_id, is_freed=True)
