"""Give a process the standard streams that the program which started it has closed."""

import os
import sys


def open_missing_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr where there is none, as after ``>&-``.

    Call it before anything is opened: the next file would get the stream's number, and what is printed with it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            # Programs that this one starts have it, too.
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", errors="backslashreplace"))
