"""The ways in which the constructor of a policy class takes its options: a config, a dict, or none."""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.options import option_names, read_options
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean


class DeclaredOptions(ABC):
    """The options of a policy class, and how it is built from them."""

    @property
    @abstractmethod
    def names(self) -> Collection[str] | None:
        """Names of the options, None where a class takes whatever it is given."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What options are that nobody gives, as far as that is known."""
        return {}

    @abstractmethod
    def read(self, options: Mapping[str, Any], *, owner: str) -> Any:
        """Return what the class is built from.

        Args:
            options: Plain values by name.
            owner: Whose options they are, for messages.

        Raises:
            ConfigError: With every problem; ``key`` names the option.
        """

    @abstractmethod
    def build(self, config: Any) -> Any:
        """Return the policy. ``config`` is what `read` has returned."""

    def taken_from(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the options among the words of a command line that only the class can read, and the other words."""
        return {}, list(words)


@dataclass(frozen=True)
class NoOptions(DeclaredOptions):
    """Of a class that takes none."""

    policy_class: Any

    @property
    def names(self) -> Collection[str]:
        """See `DeclaredOptions.names`."""
        return ()

    def read(self, options: Mapping[str, Any], *, owner: str) -> None:
        """Refuse all options; see `DeclaredOptions.read`."""
        if options:
            raise ConfigError([Problem(f"{owner} takes no options", key=key) for key in options])

    def build(self, config: Any) -> Any:
        """See `DeclaredOptions.build`."""
        del config
        return self.policy_class()


@dataclass(frozen=True)
class ConfigOptions(DeclaredOptions):
    """Of a class whose constructor takes an instance of a dataclass."""

    policy_class: Any
    config_class: Any

    @property
    def names(self) -> Collection[str] | None:
        """See `DeclaredOptions.names`."""
        return option_names(self.config_class) or ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """See `DeclaredOptions.defaults`."""
        fields = dataclasses.fields(self.config_class)
        return {each.name: each.default for each in fields if each.default is not dataclasses.MISSING}

    def read(self, options: Mapping[str, Any], *, owner: str) -> Any:
        """See `DeclaredOptions.read`."""
        return read_options(self.config_class, options, owner=owner)

    def build(self, config: Any) -> Any:
        """See `DeclaredOptions.build`."""
        return self.policy_class(config)


@dataclass(frozen=True)
class KeywordOptions(ConfigOptions):
    """Of a class whose constructor takes an instance of a class that is no dataclass, made from keywords."""

    @property
    def names(self) -> Collection[str] | None:
        """See `DeclaredOptions.names`."""
        parameters = self._keywords()
        return None if parameters is None else frozenset(parameters)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """See `DeclaredOptions.defaults`."""
        parameters = (self._keywords() or {}).values()
        return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}

    def read(self, options: Mapping[str, Any], *, owner: str) -> Any:
        """See `DeclaredOptions.read`."""
        known = self._keywords()
        problems = []
        if known is not None:
            problems = [
                Problem(f"{owner} has no such option{did_you_mean(name, known)}", key=name)
                for name in options
                if name not in known
            ]
            missing = [each.name for each in required_parameters(list(known.values())) if each.name not in options]
            problems += [Problem(f"is missing; {owner} needs it", key=name) for name in missing]
        if problems:
            raise ConfigError(problems)
        try:
            return self.config_class(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options of {owner}: {error}") from error

    def _keywords(self) -> dict[str, inspect.Parameter] | None:
        try:
            parameters = inspect.signature(self.config_class).parameters
        except (TypeError, ValueError):
            return None
        kinds = {parameter.kind for parameter in parameters.values()}
        return None if inspect.Parameter.VAR_KEYWORD in kinds else dict(parameters)


@dataclass(frozen=True)
class DictOptions(DeclaredOptions):
    """Of a class whose constructor takes a dict, or something that it does not describe."""

    policy_class: Any

    @property
    def names(self) -> None:
        """See `DeclaredOptions.names`."""
        return

    def read(self, options: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
        """Return the options as they are."""
        del owner
        return dict(options)

    def build(self, config: dict[str, Any]) -> Any:
        """Return the policy.

        Raises:
            ConfigError: If it takes its options for an object with attributes.
        """
        try:
            return self.policy_class(config)
        except AttributeError as error:
            if error.obj is not config:
                raise
            name = self.policy_class.__name__
            message = (
                f"{name} reads config.{error.name}, but it does not say what its config is, so it gets a dict; derive "
                "it from PolicyBase[Cfg] with a dataclass of its options"
            )
            raise ConfigError(Problem(message, key=error.name)) from error


def required_parameters(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters without which nothing can be called."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.default is inspect.Parameter.empty and each.kind not in kinds]
