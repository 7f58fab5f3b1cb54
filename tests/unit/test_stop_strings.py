from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from copyspec_edge.chat.detokenizer import Detokenizer
from copyspec_edge.chat.stop_strings import StopScanner

SAMPLES = {
    "emoji": "a👩‍🚀".encode(),
    "korean": "한국어".encode(),
    "mixed": "é€😀x".encode(),
    "lone continuation": b"a\x80b",
    "invalid lead": b"\xff\xfea",
    "cut short": "한".encode()[:2] + b"z",
    "surrogate": b"\xed\xa0\x80",
    "overlong": b"\xc0\xafa",
}


def detokenize(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer()
    return [*map(detokenizer.feed, pieces), detokenizer.finish()]


def split(data: bytes, cuts: tuple[int, ...]) -> list[bytes]:
    edges = (0, *cuts, len(data))
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
def test_every_split_gives_the_text_of_the_whole(data: bytes) -> None:
    whole = data.decode("utf-8", "replace")
    for n_cuts in range(min(len(data), 4)):
        for cuts in combinations(range(1, len(data)), n_cuts):
            assert "".join(detokenize(split(data, cuts))) == whole


@pytest.mark.parametrize("character", ["é", "한", "😀"])
def test_a_character_appears_with_its_last_byte_only(character: str) -> None:
    *first, last = split(character.encode(), tuple(range(1, len(character.encode()))))
    detokenizer = Detokenizer()
    for byte in first:
        assert detokenizer.feed(byte) == ""
        assert not detokenizer.is_clean
    assert detokenizer.feed(last) == character
    assert detokenizer.is_clean
    assert detokenizer.finish() == ""


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert detokenize([b"ok", "한".encode()[:1]]) == ["ok", "", "�"]


@given(st.lists(st.binary(max_size=4), max_size=10))
def test_any_bytes_give_the_text_of_the_whole(pieces: list[bytes]) -> None:
    assert "".join(detokenize(pieces)) == b"".join(pieces).decode("utf-8", "replace")


def slow_scan(feeds: list[str], stops: list[str]) -> tuple[str, int | None]:
    """The final text, and which feed stopped it."""
    text = ""
    for index, feed in enumerate(feeds):
        text += feed
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], index
    return text, None


short = st.text("abc", max_size=4)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def scan(feeds: list[str], stops: list[str]) -> tuple[StopScanner, list[str], int | None]:
    scanner, taken = StopScanner(stops), list[str]()
    for index, feed in enumerate(feeds):
        if scanner.feed(feed):
            return scanner, taken, index
        taken.append(scanner.take())
    return scanner, taken, None


@settings(max_examples=500)
@given(st.lists(short, max_size=8), stop_lists)
@example(["a", "b", "ab", "c"], ["abc"])
@example(["aab", "aac"], ["aabaac"])
@example(["xab"], ["b", "ab"])
def test_stops_where_a_search_of_the_whole_text_does(feeds: list[str], stops: list[str]) -> None:
    scanner, taken, stopped_at = scan(feeds, stops)
    assert (scanner.text, stopped_at) == slow_scan(feeds, stops)
    assert "".join(taken) + scanner.take(final=True) == scanner.text
    assert scanner.take(final=True) == ""


@settings(max_examples=500)
@given(st.lists(short, max_size=8), stop_lists)
def test_nothing_of_a_stop_string_is_ever_shown(feeds: list[str], stops: list[str]) -> None:
    scanner, shown = StopScanner(stops), ""
    for feed in feeds:
        if scanner.feed(feed):
            break
        shown += scanner.take()
        starts = [scanner.text[at:] for at in range(len(shown))]
        assert not any(stop.startswith(tail) for stop in stops for tail in starts)
    assert scanner.text.startswith(shown)


@given(st.lists(short, max_size=8), stop_lists)
def test_no_more_is_held_back_than_may_become_a_stop_string(
    feeds: list[str], stops: list[str]
) -> None:
    scanner, shown = StopScanner(stops), ""
    for feed in feeds:
        if scanner.feed(feed):
            break
        shown += scanner.take()
        held = scanner.text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_stop_string_is_found_across_any_border(cut: int) -> None:
    text = "a<end>b"
    scanner, taken, stopped_at = scan([text[: cut + 1], text[cut + 1 :]], ["<end>"])
    assert (scanner.text, stopped_at) == ("a", int(cut < 5))
    assert "".join(taken) + scanner.take(final=True) == "a"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    assert scan(["one two three"], ["three", "two"])[0].text == "one "


def test_a_stop_string_as_first_text_leaves_nothing() -> None:
    scanner, taken, _ = scan(["#", "#", "x"], ["##"])
    assert (scanner.text, taken, scanner.take(final=True)) == ("", [""], "")


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert scan(["ab", "", "c"], [])[1] == ["ab", "", "c"]
