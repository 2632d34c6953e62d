"""The check of avoided words finds them, and no others."""

from __future__ import annotations

import pytest

from tools import words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("for whoever asks", ["whoever"]),
        ("Nobody is asked", ["Nobody"]),
        ("so\n    many rows", ["so many"]),
        ("how it was come by, and what comes of it", ["come by", "comes of"]),
        ("as he was told", ["he", "told"]),
        ("fails of an answer that will not do", ["fails of", "will not do"]),
        ("which this Python has not; the others have not.", ["has not", "have not"]),
        ("a run that has not ended, has not been read and have not yet left", []),
        ("a dash stands for null and stands in front", ["stands for", "stands in"]),
        ("that is what is there", ["what is there"]),
        ("the other theme, this history, and what it is", []),
    ],
)
def test_the_words_are_found_in_any_case_and_across_lines_and_no_others(text: str, found: list[str]) -> None:
    assert [word.word for word in words.words_in("a.md", text)] == found


def test_a_word_is_named_with_its_line_and_what_to_write() -> None:
    [line] = words.lines_of(words.words_in("a.md", "one\ntwo\nasked by nobody\n"))
    assert line.startswith("a.md:3: 'nobody': write ")


def test_only_the_docstrings_of_a_test_are_read() -> None:
    source = 'def told():\n    """Nobody\n    asks."""\n    assert "told" == told()  # whoever\n'
    assert [word[1:3] for word in words.words_in("a.py", words.docstrings(source))] == [(2, "Nobody")]
