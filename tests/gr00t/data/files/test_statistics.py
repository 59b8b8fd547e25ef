import numpy as np
import pytest

from isaaclab_arena_gr00t.data.tables import (
    QUANTILES,
    ColumnSpool,
    array_statistics,
    intensity_counts,
    picture_statistics,
)


def expected(values: np.ndarray) -> dict[str, float]:
    exact = np.asarray(values, np.float64)
    return {
        "min": exact.min(),
        "max": exact.max(),
        "mean": exact.mean(),
        "std": exact.std(),
        **{name: np.quantile(exact, share) for name, share in QUANTILES.items()},
    }


@pytest.mark.parametrize("shape", [(1, 4, 5, 3), (7, 4, 5, 3), (3, 1, 1, 3), (2, 33, 31, 3)])
def test_statistics_of_pictures_are_those_of_all_their_pixels(shape):
    frames = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    statistics = picture_statistics(intensity_counts(frames), len(frames))
    for channel in range(3):
        for name, value in expected(frames[..., channel] / 255).items():
            assert statistics[name][channel, 0, 0] == pytest.approx(value, rel=1e-12), (channel, name)
    assert statistics["mean"].shape == (3, 1, 1)
    assert statistics["count"].tolist() == [shape[0]]


def test_statistics_of_episodes_added_one_by_one_are_those_of_all(tmp_path):
    generator = np.random.default_rng(2)
    episodes = [generator.normal(size=(length, 3)).astype(np.float32) for length in (1, 40, 7)]
    spool = ColumnSpool(tmp_path, 3)
    for episode in episodes:
        spool.append(episode)
    assert list(tmp_path.iterdir()) == []
    together = np.concatenate(episodes)
    statistics = spool.finish()
    assert statistics["count"].tolist() == [48]
    for place in range(3):
        for name, value in expected(together[:, place]).items():
            assert statistics[name][place] == pytest.approx(value, rel=1e-12)


def test_large_values_lose_no_digits_of_the_spread():
    values = 1e7 + np.arange(5, dtype=np.float64)[:, None]
    assert array_statistics(values)["std"][0] == pytest.approx(np.sqrt(2))
