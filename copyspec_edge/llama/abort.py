"""The function that llama.cpp asks, some hundred times a batch, whether to stop.

Through Python that would cost 5 % of a step, so it is one of C's own: `strlen` of a flag of two
bytes, of which the second stays 0, says 1 where the first is set and 0 where it is not.
"""

from __future__ import annotations

import ctypes
import sys


def _address_of_strlen() -> int:
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    address = ctypes.cast(library.strlen, ctypes.c_void_p).value
    assert address is not None
    return address


ABORT_CALLBACK = _address_of_strlen()
