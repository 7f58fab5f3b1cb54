"""ExactEngine: an engine that reads long prompts in certified batches only."""

from __future__ import annotations

import logging

from copyspec_edge.arrays import Rows, Tokens
from copyspec_edge.exactness.certificate import Certificate, split
from copyspec_edge.llama import Engine, Weights
from copyspec_edge.settings import Settings

_logger = logging.getLogger("copyspec_edge.exact")


class ExactEngine(Engine):
    """An `Engine` whose prompts give the same logits however much of them was read before.

    `Engine` leaves the lengths of batches to `n_batch`; here they are those of the certificate.
    Where reading goes on behind what was probed, one warning says so.
    """

    def __init__(
        self, weights: Weights, settings: Settings, certificate: Certificate, *, n_ctx: int
    ) -> None:
        super().__init__(weights, settings, n_ctx=n_ctx, min_rows=certificate.min_rows)
        self._certificate = certificate
        self._has_warned = False

    def eval(self, tokens: Tokens, *, rows: int) -> Rows:
        """Read `tokens`, and give the logits of the last `rows`. See `Engine.eval`."""
        self._check(tokens, rows)
        self._warn_beyond_probe()
        least = self.min_rows
        if rows <= least < len(tokens):
            for size in split(len(tokens), self._certificate.chunks, least)[:-1]:
                super().eval(tokens[:size], rows=least)
                tokens = tokens[size:]
        return super().eval(tokens, rows=rows)

    def _warn_beyond_probe(self) -> None:
        depth = self._certificate.depth
        if self.n_past >= depth and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "exact=True was probed with %d tokens of context; behind them copying is expected "
                "to change no bit, but nobody looked",
                depth,
            )
