"""Makes a copy of a LIBERO checkout in which small stand-ins take the place of pictures and meshes that are missing.

Usage: python libero_stand_ins.py CHECKOUT LIST COPY

LIST names the missing files, one a line; ``git -C CHECKOUT ls-files --deleted`` prints them. Every task then builds,
and its physics is LIBERO's, because only visual files may be named. Its pictures are not LIBERO's.
"""

import shutil
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

GREY = 160
_CORNERS = np.array([[x, y, z] for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)])
_FACES = np.array(
    [
        *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
        *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
    ]
)
_STL_TRIANGLE = np.dtype([("normal", "<3f4"), ("corners", "<9f4"), ("attributes", "<u2")])


def main(checkout: Path, missing: list[str], copy: Path) -> None:
    """Copy a checkout and add the stand-ins.

    Raises:
        ValueError: If a missing file is no picture, visual mesh or archive, so that nothing can stand in for it.
    """
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    for name in filter(None, missing):
        path = copy / name
        content = stand_in(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def stand_in(path: Path) -> bytes:
    """Return the content of a grey picture, of a box as a mesh, or of an empty archive."""
    if path.suffix == ".png":
        return png(8)
    if path.suffix in (".msh", ".obj") and "collision" not in path.parts:
        low, high = extent(path)
        return mesh(low + _CORNERS * (high - low), binary=path.suffix == ".msh")
    if path.suffix == ".zip":
        return b"PK\x05\x06" + bytes(18)
    raise ValueError(f"{path}: nothing can stand in for it")


def png(size: int) -> bytes:
    """Return a grey square picture, ``size`` pixels wide."""
    lines = (b"\0" + bytes([GREY]) * (3 * size)) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = {b"IHDR": header, b"IDAT": zlib.compress(lines), b"IEND": b""}
    chunks = [_chunk(kind + data) for kind, data in parts.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(content: bytes) -> bytes:
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def mesh(corners: np.ndarray, *, binary: bool) -> bytes:
    """Return a box in MuJoCo's binary format or in Wavefront's. Shape of ``corners``: (8, 3)."""
    if binary:
        head = struct.pack("<4i", len(corners), 0, 0, len(_FACES))
        return head + corners.astype("<f4").tobytes() + _FACES.astype("<i4").tobytes()
    lines = [("v", *corner) for corner in corners] + [("f", *face) for face in _FACES + 1]
    return "".join(f"{' '.join(map(str, line))}\n" for line in lines).encode()


def extent(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return lowest and highest corner of the collision mesh of the same object, or of a small box without one."""
    directory = path.parent.parent if path.parent.name == "visual" else path.parent
    for collision in sorted([*directory.glob("collision/*.stl"), *directory.glob("*_col.obj")]):
        vertices = _vertices(collision)
        return vertices.min(axis=0), vertices.max(axis=0)
    return np.full(3, -0.05), np.full(3, 0.05)


def _vertices(path: Path) -> np.ndarray:
    if path.suffix == ".stl":
        return np.frombuffer(path.read_bytes()[84:], _STL_TRIANGLE)["corners"].reshape(-1, 3).astype(np.float64)
    lines = path.read_text(encoding="utf-8").splitlines()
    return np.array([line.split()[1:4] for line in lines if line.startswith("v ")], np.float64)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8").split("\n"), Path(sys.argv[3]))
