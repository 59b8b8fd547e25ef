"""Command lines as dataclasses: read by tyro, with the nearest name for a misspelt option, and their help in groups."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, fields, make_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro

from isaaclab_arena.config.options import option_types
from isaaclab_arena.errors import Problem, did_you_mean, nearest_option, refuse

_Options = TypeVar("_Options")
_MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
_OPTION = re.compile(r"--?[A-Za-z]")


def read_words(options_class: type[_Options], words: Sequence[str], *, program: str) -> _Options:
    """Read a whole command line into a dataclass; ConfigError for options that it lacks, SystemExit as by `tyro`."""
    words, known = list(words), _options_of(options_class)
    if not _asks_for_help(words):
        refuse([*unknown_options(words, known), *_wrong_values(options_class, words)])
    # ``--no_json`` says what holds anyway, and tyro does not know it.
    declared = {field.name for field in fields(options_class)}  # type: ignore[arg-type]  a dataclass
    words = [word for word in words if not (_name(word).startswith("no_") and _name(word) in {*known} - declared)]
    return tyro.cli(options_class, args=words, prog=program, use_underscores=True, config=_MARKERS)


def read_some(
    options_class: type[_Options], words: Sequence[str], *, program: str, on_console: bool = True
) -> tuple[_Options, list[str]]:
    """Read the options of a dataclass, and return them with the other words in order, which another reader takes.

    Base classes with a `heading` of their own are groups of the help, "<heading> options", explained by the docstring
    of the first class. Options of a class whose heading is empty are not shown. ``operands`` of the class are words
    of the usage that another reader takes.
    """
    how: dict[str, Any] = {"prog": program, "use_underscores": True, "console_outputs": on_console, "config": _MARKERS}
    if _asks_for_help(words):
        how["prog"] += getattr(options_class, "operands", "")
        groups: list[type] = []
        for each in options_class.__mro__:
            if "heading" in vars(each) and not any(issubclass(group, each) for group in groups):
                groups.append(each)
        # tyro makes a box of each nested dataclass, and one box of those with the same heading.
        shown = [
            (f"group_{at}", Annotated[group, tyro.conf.arg(name=heading)])
            for at, group in enumerate(groups)
            if (heading := vars(group)["heading"])
        ]
        if shown:
            about = {"__doc__": options_class.__doc__}
            tyro.cli(make_dataclass("InGroups", shown, kw_only=True, namespace=about), args=["--help"], **how)
    else:
        # A required option under a wrong name would be reported as missing.
        given, own = {_name(word) for word in words}, _options_of(options_class)
        wrong = _wrong_values(options_class, words)
        required = [name for name, is_required in own.items() if is_required and name not in given]
        refuse([*misspelt(words, own if wrong else required), *wrong])
    return tyro.cli(options_class, args=list(words), return_unknown_args=True, **how)


def unknown_options(words: Sequence[str], known: Collection[str]) -> list[Problem]:
    """Return a problem for each word that begins like an option and is none of those `known`, with the nearest one."""
    return [
        Problem(f"unknown option{nearest_option(name, known)}", key=f"--{name}")
        for word in words
        if _OPTION.match(word) and ((name := _name(word)) not in known or not word.startswith("--"))
    ]


def _wrong_values(options_class: type, words: Sequence[str]) -> list[Problem]:
    """Return the problems of values that are no number or none of an option's choices."""
    hints, problems = option_types(options_class), []
    for word, following in pairwise([*words, "--"]):
        name, (_, equals, value) = _name(word), word.partition("=")
        value = value if equals else following
        kinds = _kinds(hints.get(name)) if word.startswith("--") else ()
        if not kinds or value == "None":
            continue
        choices = [str(each) for each in kinds if isinstance(each, str)]
        message = None
        if not equals and value.startswith("--"):
            message = "needs a value"
        elif choices:
            message = None if value in choices else f"there is no '{value}'{did_you_mean(value, choices)}"
        else:
            try:
                kinds[0](value)
            except ValueError:
                message = f"'{value}' is not a {'whole number' if kinds[0] is int else 'number'}"
        problems += [] if message is None else [Problem(message, key=f"--{name}")]
    return problems


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return int, float or the choices of an option; nothing for an option of other values."""
    if hint in (int, float):
        return (hint,)
    if get_origin(hint) is Literal:
        return get_args(hint)
    inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    if "Positional" in map(str, get_args(hint)) or get_origin(hint) not in (Annotated, Union, UnionType):
        return ()
    members = [each for each in inner if each is not NoneType]
    return _kinds(members[0]) if len(members) == 1 else ()


def misspelt(words: Sequence[str], names: Collection[str], *, others: Collection[str] = ()) -> list[Problem]:
    """Return the problems of `unknown_options` whose nearest option is one of `names`, and no option of `others`."""
    nearest = {f"unknown option; did you mean '--{name}'?" for name in names}
    return [each for each in unknown_options(words, {*names, *others}) if each.message in nearest]


def _asks_for_help(words: Sequence[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(words)


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def _options_of(options_class: type) -> dict[str, bool]:
    """Return the options of a dataclass, each with whether it is required; a flag may be given as ``no_<name>`` too."""

    def named() -> Iterator[tuple[str, bool]]:
        hints = option_types(options_class)
        for field in fields(options_class):
            details = get_args(hints[field.name])
            if "Positional" not in map(str, details):
                names = [name for each in details if isinstance(name := getattr(each, "name", None), str)]
                is_required = field.default is MISSING and field.default_factory is MISSING
                yield (names or [field.name])[0], is_required
                if hints[field.name] is bool and field.default is False:
                    yield f"no_{field.name}", False

    return dict(named())
