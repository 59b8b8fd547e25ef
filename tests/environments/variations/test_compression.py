"""Pictures after JPEG: close to what a library makes of them, and the same bits wherever they are computed."""

import hashlib
import io

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.simulation.varied_steps import OperationCount
from isaaclab_arena.environments.variations.varied_world import compressed_pictures, quantisation_tables

LEAST_ALIKE = 1.0
"""Mean difference of colours, of 255: libraries round their transforms a little differently."""


def scene(height: int, width: int) -> np.ndarray:
    """Return a picture with edges, slopes and colours, made of whole numbers."""
    y, x = np.mgrid[:height, :width]
    table = np.stack([120 + x, 90 + y, 200 - x // 2], axis=-1)
    table[(x - 20) ** 2 + (y - 24) ** 2 < 90] = (200, 30, 30)
    table[(x + y) % 17 == 0] //= 2
    return table.clip(0, 255).astype(np.uint8)


def compressed(pictures: np.ndarray, *qualities: int) -> np.ndarray:
    tables = torch.from_numpy(np.stack([quantisation_tables(quality) for quality in qualities]))
    return compressed_pictures(torch.from_numpy(pictures), tables).numpy()


def by_pillow(picture: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(io.BytesIO(file.getvalue())))


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize("size", [(64, 64), (45, 83)], ids=str)
@pytest.mark.parametrize("quality", [1, 10, 28, 50, 82, 95])
def test_it_looks_like_what_a_library_reads_back(size, quality):
    picture = scene(*size)
    (seen,) = compressed(picture[None], quality)
    read = by_pillow(picture, quality)
    assert apart(seen, read) < LEAST_ALIKE
    assert apart(seen, read) < apart(picture, read) / 3


def test_the_pixels_are_the_same_on_every_machine():
    digest = hashlib.sha256(compressed(scene(50, 70)[None], 28).tobytes()).hexdigest()
    assert digest == "538fe7e71c6872f09fba3d5a0aa7dce0db2a7f280122ac5c3b7d54057686d2c1"


def test_a_picture_is_the_same_beside_others_of_other_qualities():
    one, other = scene(48, 64), scene(48, 64)[::-1]
    together = compressed(np.stack([other, one, one]), 5, 28, 90)
    assert np.array_equal(together[1], compressed(one[None], 28)[0])
    assert apart(together[1], one) > apart(together[2], one)


def test_it_takes_as_many_operations_for_any_number_of_pictures():
    counts = []
    for num in (1, 7):
        tables = torch.ones(num, 2, 8, 8, dtype=torch.float64)
        with OperationCount() as count:
            compressed_pictures(torch.zeros(num, 32, 32, 3, dtype=torch.uint8), tables)
        counts.append(count.number)
    assert counts[0] == counts[1]


def test_less_quality_loses_more():
    picture = scene(64, 64)
    lost = [apart(compressed(picture[None], quality)[0], picture) for quality in (95, 82, 64, 46, 28, 10)]
    assert lost == sorted(lost)


def test_an_even_picture_stays_what_it_is_to_a_step_of_its_mean():
    for grey in (0, 128, 255):
        even = np.full((1, 32, 32, 3), grey, np.uint8)
        assert np.abs(compressed(even, 50).astype(int) - grey).max() <= 1


def test_the_tables_are_those_of_the_standard():
    assert quantisation_tables(50)[0, 0].tolist() == [16, 11, 10, 16, 24, 40, 51, 61]
    assert quantisation_tables(50)[1, 3].tolist() == [47, 66, *(99,) * 6]
    assert quantisation_tables(100).max() == 1
    assert quantisation_tables(1).max() == 255
