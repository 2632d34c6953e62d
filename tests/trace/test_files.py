"""Files appear whole or not at all, whatever is written."""

from __future__ import annotations

import pytest

from asyncio_operator.errors import ConfigurationError
from tests.trace.helpers import head_of_line

SHOWS = {
    "timeline": lambda path: head_of_line().timeline(path),
    "html": lambda path: head_of_line().html(path),
    "chrome": lambda path: head_of_line().chrome(path),
}


@pytest.fixture(params=list(SHOWS.values()), ids=list(SHOWS))
def show(request):
    return request.param


def test_a_missing_folder_is_told(show, tmp_path):
    with pytest.raises(ConfigurationError, match=r"folder that does not exist; make .*missing"):
        show(tmp_path / "missing" / "a.svg")


def test_a_folder_in_place_of_a_file_is_told(show, tmp_path):
    with pytest.raises(ConfigurationError, match="is a folder; give the path of a file"):
        show(tmp_path)


def test_an_old_file_is_replaced_not_overwritten(show, tmp_path):
    path = tmp_path / "a.svg"
    path.write_text("old")
    with path.open() as old:
        show(path)
        assert old.read() == "old"
    assert len(path.read_bytes()) > 100
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_write_that_fails(show, tmp_path):
    name = "a" * 300 + ".svg"
    with pytest.raises(OSError, match="name too long"):
        show(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(show, tmp_path):
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "link.svg").symlink_to("real.svg")
    show(tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert len((tmp_path / "real.svg").read_bytes()) > 100
