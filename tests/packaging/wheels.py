"""Build the wheel of this checkout, and install it where nothing else of the checkout is."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built_wheel(directory: Path) -> Path:
    """Build the wheel from the files that git knows, without a network; return its path.

    Args:
        directory: An empty directory, which gets a copy of the sources too.
    """
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packages = ("arena_wire", "isaaclab_arena", "jobs/", "models/")
    wanted = ("pyproject.toml", "README.md", "LICENSE", "eval_runner.py", *packages)
    for name in listed.splitlines():
        if name.startswith(wanted):
            target = directory / "sources" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    arguments = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", str(directory)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *arguments, str(directory / "sources")], check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def installed_wheel(wheel: Path, directory: Path) -> Path:
    """Install a wheel into a new virtual environment, with the packages that it needs from this one; return its bin.

    Args:
        wheel: The wheel.
        directory: A directory that does not exist.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    python = directory / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    # Python does not read the .pth files there, so nothing that is installed as editable comes along.
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return directory / "bin"
