"""The check of avoided words: it finds them, allows as many as the list says, and the list may only shrink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words
from tools.words import Found


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


def some(count: int, file: str) -> list[Found]:
    return [Found(file, line, "told", "said") for line in range(1, count + 1)]


def test_a_file_may_have_as_many_as_the_list_says_and_no_more() -> None:
    found = {"old.py": some(2, "old.py"), "more.py": some(2, "more.py"), "new.py": some(1, "new.py")}
    new = words.new_words(found, {"old.py": 2, "more.py": 1, "gone.py": 3})
    assert {word.file for word in new} == {"more.py", "new.py"}


def test_the_list_follows_files_that_move_and_refuses_words_that_come() -> None:
    assert words.rewritten({"b/a.py": some(2, "b/a.py")}, {"a.py": 2}) == "   2 b/a.py\n"
    with pytest.raises(ValueError, match="there are 3 avoided words, and the list has 2"):
        words.rewritten({"a.py": some(3, "a.py")}, {"a.py": 2})


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    assert words.baseline(path) == {}
    path.write_text(words.rewritten({"a b.md": some(1, "a b.md"), "c.py": some(12, "c.py")}, {"c.py": 40}))
    assert words.baseline(path) == {"a b.md": 1, "c.py": 12}
