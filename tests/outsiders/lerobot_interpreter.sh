#!/bin/sh
# Usage: lerobot_interpreter.sh PYTHON DIRECTORY [OPENPI]
# Makes an interpreter with LeRobot 0.4.4 and gym-pusht beside torch 2.13 on a CPU, of 2.3 GB. LeRobot's own pins,
# torch < 2.11 among them, are left out, which pip warns of. torchvision from PyPI wants torch's operators for GPUs, so
# two of them are declared before it begins. With a checkout of openpi, DIRECTORY/pi_packages gets what pi0 and pi0.5
# need beside that: transformers with openpi's changes. The tests find it by LEROBOT_PI_PACKAGES.
set -e
"$1" -m venv "$2"
python="$2/bin/python"
installed() {
    "$python" -m pip install --quiet "$@"
}
installed torch==2.13.0
installed --no-deps torchvision==0.28.0 lerobot==0.4.4
installed torch==2.13.0 'datasets>=4,<5' 'diffusers<0.36' 'huggingface-hub<0.36' 'accelerate<2' 'einops<0.9' \
    'opencv-python-headless<4.13' 'av<16' 'jsonlines<5' 'packaging<26' 'wandb<0.25' draccus==0.10.0 'gymnasium<2' \
    'rerun-sdk<0.27' 'deepdiff<9' 'imageio[ffmpeg]<3' 'termcolor<4' 'transformers>=4.57.1,<5' 'gym-pusht<0.2' 'pymunk<7' \
    num2words pynput pyserial
"$python" - <<'PROGRAM'
import sysconfig
from pathlib import Path

path = Path(sysconfig.get_path("purelib"), "torchvision", "__init__.py")
declared = 'import torch as _torch\n_library = _torch.library.Library("torchvision", "FRAGMENT")\n'
for name in ("nms", "qnms"):
    declared += f'_library.define("{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")\n'
text = path.read_text()
if not text.startswith(declared):
    path.write_text(declared + text)
PROGRAM
if [ -n "$3" ]; then
    installed --no-deps --target "$2/pi_packages" transformers==4.53.2 'tokenizers<0.22'
    cp -R "$3"/src/openpi/models_pytorch/transformers_replace/. "$2/pi_packages/transformers/"
fi
