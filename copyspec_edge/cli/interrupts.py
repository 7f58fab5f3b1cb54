"""Ctrl-C. In a long native call Python's own handler would run too late, or in the wrong place."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def listen_at_a_terminal() -> None:
    """Let Ctrl-C end what reads from a terminal, even if it was ignored when this process began.

    Shells have it ignored in what they start in the background, so that a Ctrl-C meant for others
    does not end it, and all its descendants inherit that: a terminal opened there too, which then
    has a Ctrl-C of its own.
    """
    if _is_ignored() and sys.stdin is not None and sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_ignored() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Hold a Ctrl-C back to the end of the block: a callback of llama.cpp's would swallow it."""
    interrupted = threading.Event()
    with interrupt_calls(interrupted.set):
        yield
    if interrupted.is_set():
        raise KeyboardInterrupt


@contextmanager
def interrupt_calls(cancel: Callable[[], None]) -> Iterator[None]:
    """While inside, the first Ctrl-C calls `cancel` and the second is a KeyboardInterrupt.

    Python runs signal handlers between its own instructions only, so not within a long native
    call. Its wake-up socket is written at once, and a thread that waits there cancels. Where Ctrl-C
    is ignored, it stays so.
    """
    if _is_ignored():
        yield
        return
    wakened, waker = socket.socketpair()
    waker.setblocking(False)
    interrupts = 0

    def count(signum: int, frame: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt

    def watch() -> None:
        with suppress(OSError):
            while signals := wakened.recv(16):
                if signal.SIGINT in signals:
                    cancel()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    old_handler = signal.signal(signal.SIGINT, count)
    old_fd = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_fd)
        signal.signal(signal.SIGINT, old_handler)
        waker.close()
        watcher.join()
        wakened.close()
