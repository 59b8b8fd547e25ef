"""Puts into a checkout of LIBERO-plus what its tasks lack, where its own assets.zip is not at hand.

Usage: python -m tests.environments.libero.libero_plus_stand_ins LIBERO_PLUS LIBERO

Assets of LIBERO come first, from a checkout or pip's package. A scene that is still missing becomes the one of LIBERO
that LIBERO-plus made it from, an object a small box, and a picture grey. So tasks are made and step. Neither
their pictures nor what boxes do when they are touched is LIBERO-plus's own.
"""

import io
import re
import shutil
import sys
from pathlib import Path

from PIL import Image

from isaaclab_arena.environments.libero import LiberoCheckout, missing_assets

SCENES = {
    "tabletop": "libero_tabletop_base_style",
    "floor": "libero_floor_base_style",
    "kitchen": "libero_kitchen_tabletop_base_style",
    "liv": "libero_living_room_tabletop_base_style",
    "study": "libero_study_base_style",
}
"""The scenes of LIBERO, by the first word of the scenes that were made from them."""

BOX = """<mujoco>
  <worldbody>
    <body>
      <body name="object">
        <geom type="box" size="0.02 0.02 0.02" density="100" group="0"/>
      </body>
      <site name="bottom_site" pos="0 0 -0.02" size="0.005" rgba="0 0 0 0"/>
      <site name="top_site" pos="0 0 0.02" size="0.005" rgba="0 0 0 0"/>
      <site name="horizontal_radius_site" pos="0.02 0.02 0" size="0.005" rgba="0 0 0 0"/>
    </body>
  </worldbody>
</mujoco>
"""


def main(plus: Path, libero: Path) -> int:
    """Add the assets, and return how many of them are stand-ins.

    Raises:
        ValueError: If a task lacks something that nothing can stand in for.
    """
    assets = plus / "libero" / "libero" / "assets"
    _add_tree(LiberoCheckout(libero).assets, assets)
    checkout = LiberoCheckout(plus)
    tasks = [
        checkout.task(f"{suite}/{index}") for suite, names in checkout.suites.items() for index in range(len(names))
    ]
    described = {task.described_in.read_text() for task in tasks}
    missing = {path for text in described for path in missing_assets(checkout.inside, assets, text)}
    for path in sorted(missing):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stand_in(path.relative_to(assets), assets))
    return len(missing)


def stand_in(name: Path, assets: Path) -> bytes:
    """Return the content of an asset that is missing."""
    if name.suffix in (".png", ".jpg"):
        picture = io.BytesIO()
        Image.new("RGB", (8, 8), "grey").save(picture, "PNG")
        return picture.getvalue()
    if name.parts[0] == "new_objects" and name.suffix == ".xml":
        return BOX.encode()
    first = name.stem.partition("_")[0]
    if name.parts[0] == "scenes" and first in SCENES:
        deeper = "../" * (len(name.parts) - 2)
        return re.sub('file="', f'file="{deeper}', (assets / "scenes" / f"{SCENES[first]}.xml").read_text()).encode()
    raise ValueError(f"{name}: nothing can stand in for it")


def _add_tree(source: Path, target: Path) -> None:
    """Copy the files of a directory that another one lacks."""
    for path in sorted(each for each in source.rglob("*") if each.is_file()):
        copy = target / path.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), Path(sys.argv[2]))} stand-ins\n")
