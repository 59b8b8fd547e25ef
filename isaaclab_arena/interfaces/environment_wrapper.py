"""An environment around another one, of which a subclass changes some answers."""

from typing import Any

from isaaclab_arena.interfaces.environment import Environment


class _OfReal:
    """An attribute of the wrapped environment, hidden by one that the wrapper sets itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        return self if wrapper is None else getattr(wrapper.real, self._name)


class EnvironmentWrapper(Environment):
    """A wrapper of another environment; a subclass changes some of its answers.

    The wrapper has the other environment's attributes outside of the contract too: a policy may use them. The quicker
    ways ``try_step`` and ``background`` are not passed on, since they would bypass the wrapper's own ``step`` and
    ``reset``. A subclass sets other methods to None that it does not pass on. One that closes the other environment
    says so.

    Args:
        real: The wrapped environment.
    """

    draw_conditions: Any = _OfReal()
    vary_conditions: Any = _OfReal()
    instruction: Any = _OfReal()
    provenance: Any = _OfReal()
    render_s: Any = _OfReal()
    step_again: Any = _OfReal()
    solved_at_start: Any = _OfReal()
    start_errors: Any = _OfReal()
    begin_events: Any = _OfReal()
    episode_events: Any = _OfReal()
    state: Any = _OfReal()
    state_parts: Any = _OfReal()
    state_of: Any = _OfReal()
    episode_states: Any = _OfReal()
    restore: Any = _OfReal()
    snapshot: Any = _OfReal()
    restore_snapshot: Any = _OfReal()
    draw_pictures_of: Any = _OfReal()
    pictures_drawn: Any = _OfReal()
    load_renderer: Any = _OfReal()
    filmable: Any = _OfReal()
    filming_hint: Any = _OfReal()
    films_only_drawn: Any = _OfReal()
    film: Any = _OfReal()
    film_later: Any = _OfReal()

    def __init__(self, real: Environment) -> None:
        self.real = real
        self.num_envs, self.device, self.reproducible = real.num_envs, real.device, real.reproducible
        self.observation_spec, self.action_spec = real.observation_spec, real.action_spec
        self.task_description, self.max_episode_length = real.task_description, real.max_episode_length
        self.control_dt, self.hold_action, self.metrics = real.control_dt, real.hold_action, real.metrics

    def __getattr__(self, name: str) -> Any:
        if name == "real":  # which a copy has not yet while it is made
            raise AttributeError(name)
        return getattr(self.real, name)
