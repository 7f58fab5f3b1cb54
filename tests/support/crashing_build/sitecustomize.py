"""Where PYTHONPATH names this folder, the check of llama.cpp's build crashes with repacked weights.

As it does where a virtual machine traps on instructions that the processor advertises.
"""

import os
import signal
import sys


def _is_check_with_repacked_weights() -> bool:
    flag, code, *arguments = [*sys.orig_argv[1:], "", ""]
    return flag == "-c" and "native_ch" in code and arguments[0] == "1"


if _is_check_with_repacked_weights():
    os.kill(os.getpid(), signal.SIGSEGV)
