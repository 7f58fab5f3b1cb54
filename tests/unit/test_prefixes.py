from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from copyspec_edge.arrays import Tokens
from copyspec_edge.llama.prefixes import Prefixes

pieces = st.lists(st.text("ab", max_size=5).map(str.encode), max_size=30)


@given(pieces, st.text("ab", max_size=6).map(str.encode))
def test_what_accepts_prefixes_is_asked_about_these_only(texts: list[bytes], whole: bytes) -> None:
    asked: list[int] = []

    def begins_whole(ids: Tokens) -> npt.NDArray[np.bool_]:
        asked.extend(ids.tolist())
        return np.array([whole.startswith(texts[t]) for t in ids.tolist()], np.bool_)

    accepted = Prefixes(texts).accepted(begins_whole).tolist()
    assert accepted == [t for t, text in enumerate(texts) if whole.startswith(text)]
    assert len(asked) == len(set(asked))
    for token in asked:
        shorter = [t for t in texts if t and texts[token].startswith(t) and t != texts[token]]
        assert all(whole.startswith(t) for t in shorter)


def test_a_token_without_text_is_always_asked_about() -> None:
    refuses_a = Prefixes([b"", b"a", b"ab", b""]).accepted(lambda ids: ids != 1)
    assert refuses_a.tolist() == [0, 3]
