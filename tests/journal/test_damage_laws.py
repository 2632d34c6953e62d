"""Law Y5 for journals: a damaged file is an error that names it, and never a changed answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.journal.files import is_whole, list_journal
from asyncio_operator.journal.format import Description, JournalError, is_footer_right
from asyncio_operator.journal.identity import read_description
from asyncio_operator.journal.storage import Entry, Place
from tests.journal.helpers import NOW, batch, described, read, write


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def seen_of(place: Place, description: Description, entry: Entry) -> Iterator[str]:
    """What a reader and what the driver sees of a file that holds the latest answer of key 1."""
    for look in (lambda: read(place, description, [1])[1][0], lambda: is_whole(place, entry, description)):
        try:
            yield str(look())
        except (JournalError, OSError, StateError) as error:
            yield f"an error that names {entry.name if entry.name in str(error) else 'another file'}"


def test_Y5_a_changed_page_is_an_error_that_names_the_file(place: Place, tmp_path: Path) -> None:
    description = described(place)
    write(place, description, batch({1: ["first"], 2: ["second"]}))
    [path] = tmp_path.glob("*.parquet")
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.index(b"second")))
    with pytest.raises(JournalError, match=path.name):
        read(place, description, [1, 2])


def test_Y5_no_flipped_bit_of_the_end_takes_an_answer_away(place: Place, tmp_path: Path) -> None:
    description = described(place)
    write(place, description, batch({1: ["older"]}))
    write(place, description, batch({1: ["latest"]}, NOW + 1))
    entry = list_journal(place).live[-1]
    path = tmp_path / entry.name
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # All bits of the last eight bytes, and one of each byte of the footer.
    places = [(at, bit) for at in range(len(data) - 8, len(data)) for bit in range(8)]
    places += [(at, at % 8) for at in range(footer, len(data) - 8)]
    error = f"an error that names {path.name}"
    assert [*seen_of(place, description, entry)] == ["latest", "True"]
    errors = np.zeros(2)
    for at, bit in places:
        path.write_bytes(flipped(data, at, bit))
        answer, is_there = seen_of(place, description, entry)
        assert answer in ("latest", error)
        assert is_there in ("True", error)
        errors += answer == error, is_there == error
    assert errors.min() > len(places) * 0.9


def test_J4_a_file_that_was_cut_anywhere_is_ignored(place: Place, tmp_path: Path) -> None:
    description = described(place)
    write(place, description, batch({1: ["PAR1"]}))
    write(place, description, batch({1: ["latest"]}, NOW + 1))
    entry = list_journal(place).live[-1]
    path = tmp_path / entry.name
    data = path.read_bytes()
    for size in [*range(0, len(data) - 40, 7), *range(len(data) - 40, len(data))]:
        path.write_bytes(data[:size])
        [cut] = [one for one in list_journal(place).live if one.name == entry.name]
        assert not is_whole(place, cut, description)
        assert read(place, description, [1]) == {1: ["PAR1"]}


@pytest.mark.parametrize("seals", [1, 2])
def test_Y5_keys_and_answers_that_look_like_a_checksum_damage_nothing(place: Place, seals: int) -> None:
    description = described(place, "text")
    text = "\x18\x17asyncio_operator.footer\x18\x0800000000" * seals
    write(place, description, batch({text: [text]}))
    [entry] = list_journal(place).live
    assert is_whole(place, entry, description)
    assert read(place, description, [text]) == {text: [text]}


def test_Y5_a_footer_without_a_checksum_is_valid_too() -> None:
    assert is_footer_right(b"of a file that was written before there were checksums")


def test_J6_a_description_that_does_not_fit_its_name_is_damaged(place: Place, tmp_path: Path) -> None:
    described(place)
    [path] = tmp_path.rglob("description-*.json")
    path.write_text(path.read_text().replace('"test"', '"text"'))
    with pytest.raises(StateError, match=rf"{path.name} is damaged"):
        read_description(place)
