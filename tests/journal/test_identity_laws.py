"""Law J6: what identifies an enricher in a journal, and how another one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.journal.identity import identity_of, open_journal, read_description, wanted_description
from asyncio_operator.journal.storage import Place
from enrichers import BlockingEnricher, FunctionEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, TableEnricher

KEYS = pa.schema([("id", pa.int32())])
ANSWERS = pa.schema([("v", pa.string()), ("n", pa.int32())])


async def price(key: int) -> None:
    return None


async def weight(key: int) -> None:
    return None


def first(key: int) -> None:
    return None


def second(key: int) -> None:
    return None


SECRETS = ("s3cret", "t0ken", "bob")


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (
            PostgresEnricher("postgresql://bob:s3cret@db:5432/shop", table="t", key="id"),
            PostgresEnricher("postgresql://eve@db:5432/shop", table="t", key="id", pool_size=9, max_batch=5),
            PostgresEnricher("postgresql://bob:s3cret@db:5432/shop", table="u", key="id"),
        ),
        (
            HttpEnricher("https://bob:s3cret@x/{key}?units=c&token=t0ken", schema="v long"),
            HttpEnricher("https://x/{key}?units=c&token=s3cret", schema="v long", per_host=3),
            HttpEnricher("https://x/{key}?units=f&token=s3cret", schema="v long"),
        ),
        (
            HttpEnricher("https://x/{key}", schema="v long", headers={"X": "s3cret"}, params={"appid": "t0ken"}),
            HttpEnricher("https://x/{key}", schema="v long", headers={"X": "t0ken"}, params={"appid": "t0ken"}),
            HttpEnricher("https://x/{key}", schema="v long", method="POST", json_body={"model": "t0ken", "q": "{key}"}),
        ),
        (
            RedisEnricher("redis://:s3cret@h/0", schema="v long"),
            RedisEnricher("redis://h/0", schema="v long", pool_size=8),
            RedisEnricher("redis://h/1", schema="v long"),
        ),
        (FunctionEnricher(price, "v long"), FunctionEnricher(price, "v long"), FunctionEnricher(weight, "v long")),
        (
            BlockingEnricher(first, "v long"),
            BlockingEnricher(first, "v long", max_workers=2),
            BlockingEnricher(second, "v long"),
        ),
        (
            TableEnricher("/data/a.parquet", key="id", columns=["v"]),
            TableEnricher("/data/a.parquet", key="id", columns=["v"]),
            TableEnricher("/data/b.parquet", key="id", columns=["v"]),
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_J6_an_identity_is_readable_without_secrets_and_tells_sources_apart(
    one: Enricher, same: Enricher, other: Enricher
) -> None:
    shown = identity_of(one)
    assert type(one).__name__ in shown
    assert not [secret for secret in SECRETS if secret in shown]
    assert identity_of(same) == shown
    assert identity_of(other) != shown


@pytest.mark.parametrize(
    "argument",
    [
        "jdbc:postgresql://bob:s3cret@h/db?user=x&password=s3cret",
        "bob:s3cret@host:80/x",
        "jdbc:oracle:thin:bob/s3cret@host:1521/x",
        "https://bob:s3cret@h/x?sig=t0ken&api_key=s3cret&q=1",
        "https://h/x?q=1&s3cret",
        ("api_key", "s3cret"),
        [("token", "t0ken"), ("q", "1")],
        {"params": {"api_key": "s3cret"}},
        b"s3cret",
        "Server=x;Pwd=s3cret;Uid=me",
        "AccountKey=s3cret==;x=1",
        "host=x password='s3cret t0ken' user=y",
        "mongodb://bob:s3cret@a,b/c",
    ],
    ids=str,
)
def test_J6_X5_no_secret_of_an_argument_of_any_form_is_in_an_identity(argument: object) -> None:
    class Own(Enricher):
        def __init__(self, place: object) -> None:
            self.place = place

        def schema(self) -> pa.Schema:
            return ANSWERS

    shown = identity_of(Own(argument))
    assert not [secret for secret in SECRETS if secret in shown], shown


def test_J6_a_class_of_ones_own_counts_by_its_arguments() -> None:
    class Prices(Enricher):
        def __init__(self, market: str, api_token: str, odbc: str) -> None:
            self.market = market
            self.odbc = odbc
            self._api_token = api_token
            self._client = object()

        def schema(self) -> pa.Schema:
            return ANSWERS

    shown = identity_of(Prices("eu", "t0ken", "Server=db;Password=s3cret;Encrypt=yes"))
    assert shown.endswith("Prices(market='eu', odbc='Server=db;Encrypt=yes')")


def test_J6_an_enricher_may_say_itself_which_answers_a_journal_holds() -> None:
    class Model(Enricher):
        def __init__(self, max_tokens: int, place: str) -> None:
            self.max_tokens = max_tokens
            self.place = place

        def schema(self) -> pa.Schema:
            return ANSWERS

        def journal_identity(self) -> str:
            return f"answers of {self.max_tokens} tokens"

    assert identity_of(Model(7, "here")) == identity_of(Model(7, "there")) == "answers of 7 tokens"
    assert identity_of(Model(8, "here")) == "answers of 8 tokens"


def test_J6_a_journal_of_another_identity_or_columns_is_refused_with_what_differs(place: Place) -> None:
    open_journal(place, wanted_description("first", KEYS, ANSWERS))
    before = sorted(path.read_bytes() for path in Path(place.shown).rglob("*.json"))
    for identity, keys, answers, says in [
        ("second", KEYS, ANSWERS, "it holds answers of 'first', not of 'second'"),
        ("first", pa.schema([("id", pa.string())]), ANSWERS, r"key columns are \(id bigint\), not \(id string\)"),
        ("first", pa.schema([*KEYS, ("b", pa.int32())]), ANSWERS, r"not \(id bigint, b bigint\)"),
        ("first", KEYS, ANSWERS.remove(1), r"columns \(v string, n int\), not \(v string\)"),
        ("first", KEYS, pa.schema([ANSWERS.field(0), ("n", pa.int64())]), r"not \(v string, n bigint\)"),
    ]:
        with pytest.raises(ConfigurationError, match=says) as caught:
            open_journal(place, wanted_description(identity, keys, answers))
        assert "use another path for it" in str(caught.value)
        assert ("give it that name, identity='first'" in str(caught.value)) is (identity == "second"), "no help"
    assert sorted(path.read_bytes() for path in Path(place.shown).rglob("*.json")) == before, "never cleared"


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-c000.snappy.parquet",
        "part-00000.csv",
        "_SUCCESS",
        "day=2026-05-01/part-00000.parquet",
        "day=2026-05-01/",
        "2026/05/01/hudi.parquet",
        "_delta_log/00000000000000000000.json",
        "_spark_metadata/0",
    ],
)
def test_J6_a_directory_with_another_table_is_refused_and_left_as_it_is(place: Place, name: str) -> None:
    other = Path(place.shown) / name
    other.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("/"):
        other.mkdir()
    else:
        other.write_bytes(b"PAR1")
    first = name.partition("/")[0]
    for make in (True, False):
        with pytest.raises(ConfigurationError, match=rf"has other data, such as {first}: .* directory of its own"):
            open_journal(place, wanted_description("first", KEYS, ANSWERS), make=make)
    assert list(Path(place.shown).iterdir()) == [Path(place.shown) / first]


def test_J6_what_a_disk_or_a_person_leaves_in_a_directory_is_no_table(place: Place) -> None:
    root = Path(place.shown)
    for name in ("lost+found", ".snapshot"):
        (root / name).mkdir(parents=True)
    (root / "README.txt").write_text("answers of the geocoder")
    assert open_journal(place, wanted_description("first", KEYS, ANSWERS)) == read_description(place)


def test_J6_key_columns_of_other_names_wider_types_and_columns_in_another_order_are_taken(place: Place) -> None:
    first = open_journal(place, wanted_description("x", KEYS, ANSWERS))
    other = wanted_description(
        "x", pa.schema([("number", pa.int64())]), pa.schema([ANSWERS.field(1), ANSWERS.field(0)])
    )
    assert open_journal(place, other) == first == read_description(place)


def test_J6_decimal_keys_are_taken_if_the_journal_holds_every_one(place: Place) -> None:
    def wanted(precision: int, scale: int):
        return wanted_description("x", pa.schema([("id", pa.decimal128(precision, scale))]), ANSWERS)

    open_journal(place, wanted(12, 2))
    open_journal(place, wanted(11, 1))
    for precision, scale in [(13, 2), (12, 3), (12, 1)]:
        with pytest.raises(ConfigurationError, match="its key columns are"):
            open_journal(place, wanted(precision, scale))


class Late(Place):
    """Another application makes its journal while this one makes its own."""

    def __init__(self, path: str, other: str) -> None:
        super().__init__(path)
        self.other = other

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        other, self.other = self.other, ""
        if other:
            theirs = wanted_description(other, KEYS, ANSWERS)
            super().put(theirs.name, theirs.text.encode())


def test_J6_two_that_make_a_journal_at_once_agree_or_one_refuses(tmp_path: Path) -> None:
    mine = wanted_description("mine", KEYS, ANSWERS)
    assert open_journal(Late(str(tmp_path / "a"), "mine"), mine) == mine
    with pytest.raises(
        ConfigurationError, match="at the same moment, with other columns or another identity: run again"
    ):
        open_journal(Late(str(tmp_path / "b"), "theirs"), mine)
    left = read_description(Place(str(tmp_path / "b")))
    assert left is not None
    assert left.identity == "theirs"


def test_J6_a_damaged_or_newer_description_is_an_error(place: Place, tmp_path: Path) -> None:
    open_journal(place, wanted_description("x", KEYS, ANSWERS))
    [path] = tmp_path.rglob("description-*.json")
    about = json.loads(path.read_text())
    for text, says in [
        ("{", "is damaged"),
        (json.dumps(about | {"format": 2}), "is of format 2, and this version of asyncio-operator knows format 1"),
        (json.dumps(about | {"answers": "v nonsense"}), "is damaged"),
        (json.dumps({"format": 1}), "is damaged"),
    ]:
        path.write_text(text)
        with pytest.raises(StateError, match=says):
            read_description(place)


def test_J6_answers_without_a_description_are_not_taken_for_a_new_journal(place: Place, tmp_path: Path) -> None:
    place.put(f"answers-{1:013d}-{'0' * 16}-000000.parquet", b"x")
    with pytest.raises(ConfigurationError, match="but no description"):
        open_journal(place, wanted_description("x", KEYS, ANSWERS))
    assert [path.name for path in tmp_path.glob("*.parquet")] == [entry.name for entry in place.list()]


def test_J3_names_that_a_journal_needs_or_that_clash_are_refused() -> None:
    for keys, answers, says in [
        (KEYS, pa.schema([("_TIME", pa.string())]), "'_TIME' has a name that a journal uses itself"),
        (KEYS, pa.schema([("a", pa.string()), ("A", pa.string())]), "different names, whatever their case"),
        (KEYS, pa.schema([("a", pa.duration("s"))]), "cannot store columns of type duration"),
    ]:
        with pytest.raises(ConfigurationError, match=says):
            wanted_description("x", keys, answers)
    assert wanted_description("x", pa.schema([("V", pa.int32())]), ANSWERS).schema.names[:2] == ["_key_V", "v"]
