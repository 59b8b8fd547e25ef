"""A worker that does as it is told: repeats, raises, prints, falls silent, dies."""

import importlib
import os
import sys
import time


class Answers:
    """Repeats what it is sent, unless the message asks for something else."""

    def __init__(self, memory, told):
        self.memory = memory

    def answer(self, message, arrays):
        request = message["request"]
        if request == "die":
            sys.stderr.write("the roof came down\n")
            os._exit(3)
        if request == "hang":
            time.sleep(3600)
        if request == "raise":
            raise OSError("the floor gave way")
        if request == "import":
            return {"file": importlib.import_module(message["name"]).__file__}, {}
        if request == "write":
            os.pwrite(self.memory, b"seen", 4)
        sys.stdout.write("nothing of this is a frame\n")
        return message, arrays
