"""Makes chosen calls of the system fail, below Python and below HDF5's library, in a program that was started so."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SystemTrouble:
    """Calls (``lock``, ``open`` or ``read``) that the system refuses with an error, for files whose names end so."""

    call: str
    number: int
    ending: str = ""
    since: int = 1

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which the program's process has this trouble."""
        return {
            "TROUBLE": self.call,
            "TROUBLE_ERRNO": str(self.number),
            "TROUBLE_ENDING": self.ending,
            "TROUBLE_FROM": str(self.since),
        }


def trouble_variables(directory: Path) -> dict[str, str] | None:
    """Return the variables with which a program has to be started, None where there is no C compiler."""
    compiler, library = shutil.which("cc"), directory / "system_trouble.so"
    if compiler is None:
        return None
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
