"""Tells a policy that has its weights from a file from one to which LeRobot has left some by chance."""

from __future__ import annotations

import typing

import safetensors
import torch

_SHOWN = 5
_PREFIX = "model."
"""What LeRobot adds to names of weights that others have saved."""


def surely_loaded(load: typing.Callable[[], typing.Any], file: str) -> typing.Any:
    """Return a policy whose weights do not depend on chance.

    LeRobot warns of weights that a file lacks, or cannot read, and goes on with random ones. Those that are not seen in
    the file may be from elsewhere, or be changed; so the policy is loaded again, and they have to be the same.

    Args:
        load: Loads it.
        file: Where its weights are.

    Raises:
        ValueError: If it has weights of chance.
    """
    torch.manual_seed(0)
    policy = load()
    doubtful = [*_not_seen_in(file, policy)]
    if not doubtful:
        return policy
    first = {name: value.detach().cpu().clone() for name, value in _weights(policy).items() if name in doubtful}
    del policy
    torch.manual_seed(1)
    policy = load()
    again = _weights(policy)
    by_chance = [name for name, value in first.items() if not torch.equal(value, again[name].detach().cpu())]
    if by_chance:
        names = ", ".join(by_chance[:_SHOWN]) + (", ..." if len(by_chance) > _SHOWN else "")
        raise ValueError(
            f"LeRobot leaves {len(by_chance)} of {len(again)} weights to chance, which {file} lacks: {names}"
        )
    return policy


def _not_seen_in(file: str, policy: typing.Any) -> typing.Iterator[str]:
    """Yield the names of weights that a file lacks, or has otherwise, as far as their beginnings tell."""
    weights = _weights(policy)
    if not weights:
        return
    with safetensors.safe_open(file, "pt") as saved:
        names = {name.removeprefix(_PREFIX): name for name in saved.keys()}  # noqa: SIM118  it is no mapping

        def is_seen(name: str, value: torch.Tensor) -> bool:
            if name.removeprefix(_PREFIX) not in names:
                return False
            part = saved.get_slice(names[name.removeprefix(_PREFIX)])
            if list(part.get_shape()) != [*value.shape]:
                return False
            begin = part[:1] if value.ndim else part[...]
            return torch.equal(begin.to(value.dtype), (value[:1] if value.ndim else value).detach().cpu())

        seen = {value.data_ptr() for name, value in weights.items() if is_seen(name, value)}
    yield from (name for name, value in weights.items() if value.data_ptr() not in seen)


def _weights(policy: typing.Any) -> dict[str, torch.Tensor]:
    """Return all weights by name, those of several names under each."""
    return dict(policy.named_parameters(remove_duplicate=False))
