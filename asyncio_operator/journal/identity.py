"""Makes a journal, or checks that one holds the answers of this enricher (law J6). It never clears one.

A description is named by the hash of its bytes. So two jobs that make a journal of the same description at the same
time write the same file, and two that differ both see the other's and refuse: the later one, or both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.arrow.schema import as_schema
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, StateError, function_name
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.journal.files import list_journal, read_file
from asyncio_operator.journal.format import (
    ABOUT,
    DATA_NAME,
    DESCRIPTION_NAME,
    DIRECTORY,
    Description,
    ddl,
    stored_key_type,
)
from asyncio_operator.journal.storage import Place


def wanted_description(identity: str, keys: pa.Schema, answers: pa.Schema) -> Description:
    """The description of a new journal. `identity` is what is asked, without secrets. `keys` and `answers` are names
    and types of columns; a key column with the name of an answer's column is stored as ``_key_NAME``.
    ConfigurationError if a name or a type cannot be stored."""
    own = {name.lower() for name in ABOUT.names}
    taken = [name.lower() for name in answers.names]
    names = [f"_key_{name}" if name.lower() in taken else name for name in keys.names]
    for name in [*names, *answers.names]:
        if name.lower() in own:
            raise ConfigurationError(f"the column {name!r} has a name that a journal uses itself: rename it")
    everything = [*(name.lower() for name in names), *taken]
    if len(set(everything)) < len(everything):
        raise ConfigurationError(
            f"the columns of a journal must have different names, whatever their case; there are {names} and "
            f"{answers.names}: rename one"
        )
    stored = pa.schema([(name, stored_key_type(kind)) for name, kind in zip(names, keys.types, strict=True)])
    # Through the text, so that two libraries' ways to write one type are the same.
    return Description(identity, as_schema(ddl(stored)), as_schema(ddl(answers)))


def open_journal(place: Place, wanted: Description, *, make: bool = True) -> Description:
    """The description of the journal at a place. If there is none, it is made unless `make` is False.

    Raises:
        ConfigurationError: the journal holds something else; the message says what differs. Or there is none yet, and
            the directory has other Parquet files.
        StateError: a file is damaged or of another format.
        OSError: the place does not answer.
    """
    found = read_description(place)
    if found is None:
        # A job that overwrites its table would delete the journal in it, and a reader of the table would read answers.
        # The data of a table are files that Spark wrote, or any directory, such as those of partitions or of a Delta
        # log. But another job may have made this journal since, and written answers.
        files = [entry.name for entry in place.list()]
        others = [name for name in files if not DATA_NAME.fullmatch(name) and _OF_TABLE.match(name)]
        others += [name for name in place.directories() if name not in _OWN_DIRECTORIES]
        if others:
            raise ConfigurationError(
                f"the directory {place.shown} has other data, such as {min(others)}: a journal needs a directory of "
                "its own; use another path"
            )
        if not make:
            return wanted
        place.put(wanted.name, wanted.text.encode())
        others = [name for name in _names(place) if name != wanted.name]
        if not others:
            return wanted
        place.delete(wanted.name)
        raise ConfigurationError(
            f"another application made the journal {place.shown} at the same moment, with other columns or another "
            "identity: run again"
        )
    if differences := differ(found, wanted):
        raise ConfigurationError(
            f"the journal {place.shown} does not fit this enricher: {'; '.join(differences)}: use another path for it"
        )
    return found


_OWN_DIRECTORIES = (DIRECTORY, "lost+found")
"""What a new journal's directory may have in it: another job makes this journal at the same moment, or it is a disk."""


_OF_TABLE = re.compile(r"part-|_SUCCESS$|.*\.parquet$")


def read_description(place: Place) -> Description | None:
    """The description of a journal; None if there is no journal. ConfigurationError if there are two, or data files
    without one; StateError if it is damaged or of another format."""
    names = _names(place)
    if len(names) > 1:
        raise ConfigurationError(
            f"the journal {place.shown} has several descriptions, {names}: two applications made it at the same "
            "moment; delete the wrong one"
        )
    if not names:
        if list_journal(place).files:
            raise ConfigurationError(
                f"the journal {place.shown} has files with answers, but no description in {DIRECTORY}/: restore it"
            )
        return None
    found = Description.read(read_file(place, names[0]), f"{place.shown}/{names[0]}")
    if found.name != names[0]:
        raise StateError(
            f"the journal's file {place.shown}/{names[0]} is damaged (its name is not its hash): restore it"
        )
    return found


def _names(place: Place) -> list[str]:
    found = (entry.name for entry in place.list(DIRECTORY))
    return sorted(f"{DIRECTORY}/{name}" for name in found if DESCRIPTION_NAME.fullmatch(name))


def differ(found: Description, wanted: Description) -> list[str]:
    """What keeps answers for one description from being used for another; nothing if they can be."""
    differences = []
    if found.identity != wanted.identity:
        same = f"if they are the same, give it that name, identity={found.identity!r}"
        differences.append(f"it holds answers of {found.identity!r}, not of {wanted.identity!r} ({same})")
    pairs = list(zip(found.keys.types, wanted.keys.types, strict=False))
    # Names may be others: key columns are matched by position.
    if len(found.keys) != len(wanted.keys) or not all(_holds(one, other) for one, other in pairs):
        differences.append(f"its key columns are ({ddl(found.keys)}), not ({ddl(wanted.keys)})")
    one, other = ({field.name: ddl(pa.schema([field])) for field in kind.answers} for kind in (found, wanted))
    if one != other:
        differences.append(f"its answers have the columns ({ddl(found.answers)}), not ({ddl(wanted.answers)})")
    return differences


def _holds(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a key column of one type can hold every key of another."""
    if kinds.is_decimal(stored) and kinds.is_decimal(kind):
        return bool(stored.scale >= kind.scale and stored.precision - stored.scale >= kind.precision - kind.scale)
    return bool(stored == kind)


# -- the identity of an enricher

_SECRET = re.compile("pass|pwd|secret|token|key$|auth|sig|credential|cookie|headers", re.IGNORECASE)
"""Options that may hold a secret. They do not count: they may change while the answers stay the same."""

_HOW = re.compile(
    "pool|timeout|max_|workers|_size$|per_host|ssl|trust_env|setup|teardown|weigh|usage|hints|redirects|idempoten",
    re.IGNORECASE,
)
"""Options that say how the source is asked, and not what."""

_PAIR = re.compile(
    r"[\w-]*(?:pass|pwd|secret|token|credential|(?:account|access|api)[_-]?key)[\w-]*\s*=\s*(?:'[^']*'|[^\s;&]+)[;&]?\s*",
    re.IGNORECASE,
)

_USER = re.compile(r"(?<=//)[^\s/@]+@|^[^\s/:@]+:[^\s/@]+@|(?<=^jdbc:oracle:thin:)[^\s/@]+/[^\s@]+@")
"""User and password in what is no URL, as in a JDBC address."""


def identity_of(enricher: Enricher) -> str:
    """What an enricher asks, readable and without secrets: its class, and the options that it was made with.

    An option is an argument of the class that the object holds under its name, with or without an underscore. Options
    that may hold a secret, or say only how the source is asked, are left out, and so are the columns, which a journal
    compares itself. A URL loses its user and password. The values of a query and of a mapping are shown as a hash of 32
    bits, a function as its name and a hash of its code. `Journal(identity=...)` takes its place where that is too much
    or too little. An enricher may know better, see `Enricher.journal_identity`.
    """
    if (own_words := enricher.journal_identity()) is not None:
        return own_words
    kind = type(enricher)
    names = [name for name in inspect.signature(kind).parameters if name != "schema"]
    slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    # Only what the object has itself: a method of its class may have the name of an argument.
    own = {name: getattr(enricher, name) for name in slots if hasattr(enricher, name)} | getattr(
        enricher, "__dict__", {}
    )
    held = {name: own.get(name, own.get(f"_{name}")) for name in names}
    # A method that the object has of its own, as a decorated function.
    held |= {name: value for name, value in own.items() if callable(getattr(kind, name, None))}
    options = [
        f"{name}={text}"
        for name, value in sorted(held.items())
        if (name == "key" or not _SECRET.search(name)) and not _HOW.search(name) and (text := _shown(value)) is not None
    ]
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(options)})"


def _shown(value: object) -> str | None:
    """A value of an option; None if it does not say what is asked."""
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(_without_credentials(value))
    if isinstance(value, Mapping):
        shown = [f"{key}: {_hash(value[key])}" for key in sorted(value, key=str) if not _SECRET.search(str(key))]
        return "{" + ", ".join(shown) + "}"
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str) and _SECRET.search(value[0]):
        return None  # A pair of a name and a secret.
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text for item in value if (text := _shown(item)) is not None) + "]"
    if isinstance(value, set | frozenset):
        return "[" + ", ".join(sorted(text for item in value if (text := _shown(item)) is not None)) + "]"
    return f"{function_name(value)} {_hash(value)}" if callable(value) else None


def _hash(value: object) -> str:
    return f"#{fingerprint(value)[:8]}"


def _without_credentials(text: str) -> str:
    """A text without passwords, as in a DSN; of a URL, also without the user, and with hashes for its query."""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if not parts.scheme or not parts.netloc:
        return _USER.sub("", _PAIR.sub("", text))
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    # An item without a name is a value.
    named = ((f"{name}={_hash(value)}" if equals else _hash(name), name) for name, equals, value in pairs)
    query = "&".join(shown for shown, name in named if not _SECRET.search(name))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))
