"""Finds stop strings in a growing text, where it is cut; none of them leaks, not even in part.

It knows neither tokens nor models.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Looks for stop strings in a growing text and says how much of it is safe to show.

    The text is scanned token by token, and the first token that completes a stop string ends it:
    before the stop string that begins earliest, if it completes several.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._text = ""
        self._shown = 0

    @property
    def text(self) -> str:
        """All text fed so far; after a stop, the text before it."""
        return self._text

    def feed(self, text: str) -> bool:
        """Append `text`; True if it completes a stop string, which is then cut off."""
        scanned = max(self._shown, len(self._text) - self._longest + 1)
        # Nobody else holds the text then, so that Python appends in place.
        whole, self._text = self._text, ""
        whole += text
        self._text = whole
        del whole
        found = [at for stop in self._stops if (at := self._text.find(stop, scanned)) >= 0]
        if found:
            self._text = self._text[: min(found)]
        return bool(found)

    def take(self, *, final: bool = False) -> str:
        """Text not taken before, without a tail that may still become a stop string.

        Args:
            final: nothing follows, so the tail is text too.
        """
        end = len(self._text) - (0 if final else self._held_back())
        shown, self._shown = self._text[self._shown : end], max(end, self._shown)
        return shown

    def _held_back(self) -> int:
        most = min(self._longest - 1, len(self._text) - self._shown)
        for length in range(most, 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
