"""The ways in which the constructor of a policy class takes its options: a config, keywords, a dict, or none."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from isaaclab_arena.config.options import misnamed_options, option_names, read_options
from isaaclab_arena.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True)
class DeclaredOptions:
    """The options of a policy class, and how it is built from them.

    Attributes:
        names: Names of the options, None where a class takes whatever it is given.
        read: Takes plain values by name and, as ``owner``, whose options they are, for messages; returns what the class
            is built from. It raises `ConfigError` with every problem, whose ``key`` names the option.
        build: Takes what ``read`` has returned, and returns the policy.
        defaults: What options are that nobody gives, as far as that is known.
        taken_from: Takes the words of a command line; returns the options among them that only the class can read, and
            the other words.
    """

    names: Collection[str] | None
    read: Callable[..., Any]
    build: Callable[[Any], Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    taken_from: Callable[[Sequence[str]], tuple[dict[str, Any], list[str]]] = lambda words: ({}, list(words))


def no_options(policy_class: Any) -> DeclaredOptions:
    """Return the options of a class that takes none."""

    def read(options: Mapping[str, Any], *, owner: str) -> None:
        if options:
            raise ConfigError([Problem(f"{owner} takes no options", key=key) for key in options])

    return DeclaredOptions(names=(), read=read, build=lambda _: policy_class())


def config_options(policy_class: Any, config_class: Any) -> DeclaredOptions:
    """Return the options of a class whose constructor takes an instance of a dataclass."""
    fields = dataclasses.fields(config_class)
    return DeclaredOptions(
        names=option_names(config_class) or (),
        read=partial(read_options, config_class),
        build=policy_class,
        defaults={each.name: each.default for each in fields if each.default is not dataclasses.MISSING},
    )


def keyword_options(policy_class: Any, config_class: Any) -> DeclaredOptions:
    """Return the options of a class whose constructor takes an instance of a plain class, made from keywords."""
    keywords = _keywords(config_class)

    def read(options: Mapping[str, Any], *, owner: str) -> Any:
        if keywords is not None:
            required = [each.name for each in required_parameters(list(keywords.values()))]
            problems = misnamed_options(options, keywords, required, owner=owner)
            if problems:
                raise ConfigError(problems)
        try:
            return config_class(**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options of {owner}: {error}") from error

    parameters = (keywords or {}).values()
    return DeclaredOptions(
        names=None if keywords is None else frozenset(keywords),
        read=read,
        build=policy_class,
        defaults={each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty},
    )


def _keywords(config_class: Any) -> dict[str, inspect.Parameter] | None:
    """Return the keywords that a class takes, None where it takes any or does not say."""
    try:
        parameters = inspect.signature(config_class).parameters
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in parameters.values()}
    return None if inspect.Parameter.VAR_KEYWORD in kinds else dict(parameters)


def dict_options(policy_class: Any) -> DeclaredOptions:
    """Return the options of a class whose constructor takes a dict, or something that it does not describe.

    Its ``build`` raises `ConfigError` where the class takes its options for an object with attributes.
    """

    def build(config: dict[str, Any]) -> Any:
        try:
            return policy_class(config)
        except AttributeError as error:
            if error.obj is not config:
                raise
            message = (
                f"{policy_class.__name__} reads config.{error.name}, but it does not say what its config is, so it "
                "gets a dict; derive it from PolicyBase[Cfg] with a dataclass of its options"
            )
            raise ConfigError(Problem(message, key=error.name)) from error

    def read(options: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
        del owner
        return dict(options)

    return DeclaredOptions(names=None, read=read, build=build)


def required_parameters(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters without which nothing can be called."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters if each.default is inspect.Parameter.empty and each.kind not in kinds]
