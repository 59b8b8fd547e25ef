"""What a test lets this process see of its machine."""

import pytest
import torch


def show_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let torch see so many GPUs; nothing may be computed on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
