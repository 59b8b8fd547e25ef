"""Write the pages of the site, ready for mkdocs: ``python -m documentation DIRECTORY``."""

import shutil
import sys
from pathlib import Path

from documentation.staging import stage

if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    stage(target)
