"""A picture in every layout whose colours are certain, and shapes that are ambiguous."""

import numpy as np

COLOURS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
GREY = np.repeat(COLOURS[..., :1], 3, axis=-1)

LAYOUTS = {
    "channels last": (COLOURS, COLOURS),
    "channels first": (np.moveaxis(COLOURS, -1, 0), COLOURS),
    "with opacity": (np.concatenate((COLOURS, np.full((6, 8, 1), 7, np.uint8)), axis=-1), COLOURS),
    "grey": (GREY[..., :1], GREY),
    "grey, channels first": (GREY[None, ..., 0], GREY),
    "grey, no channels": (GREY[..., 0], GREY),
}
"""Name to the picture as it lies in its array, and to its colours."""

UNCLEAR = {
    (4, 6, 8): "the first four may be channels or pictures",
    (6, 8, 2): "it is not certain where its channels are",
    (3, 6, 4): "it is not certain where its channels are",
    (4, 6, 8, 3): "which is not a single picture",
    (0, 6, 3): "which is not a single picture",
}
"""Shape of an array of bytes to why it has no colours."""
