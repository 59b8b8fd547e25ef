"""What a test lets this process see of its machine."""

import pytest
import torch


def show_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let torch see so many GPUs; nothing may be computed on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def be_a_rank(monkeypatch: pytest.MonkeyPatch, gpus: int, *, local_rank: int | None = None, ranks: int = 1) -> None:
    """Pretend that this process is a rank on a machine with some GPUs, or that no launcher started it."""
    show_gpus(monkeypatch, gpus)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if local_rank is not None:
        for name, value in {"RANK": local_rank, "LOCAL_RANK": local_rank}.items():
            monkeypatch.setenv(name, str(value))
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, str(ranks))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29517")
