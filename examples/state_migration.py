"""Migrates a value state that holds a map to a map state, while it is in use.

    python -m examples.state_migration

The state of a customer is a basket of 500 articles. In a value state, a change of one article reads and writes all 500;
in a map state it reads and writes one. Both are measured on RocksDB, and the ratio is printed. Then the old state is
migrated in place: the first access to a customer's basket moves it, and readers see no difference.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

from asyncio_operator.state import MapStateDescriptor, MigratingMapState, RocksDBStateBackend, ValueStateDescriptor

ARTICLES = 500
CUSTOMERS = 200
CHANGES = 2000

OLD = ValueStateDescriptor("basket")
NEW = MapStateDescriptor("basket by article")


def article(number: int) -> str:
    """The name of an article."""
    return f"article {number % ARTICLES:03}"


def change_as_value(backend: RocksDBStateBackend) -> float:
    """Changes one article at a time in a value that holds the whole basket. Returns seconds per change."""
    basket = backend.value_state(OLD)
    start = perf_counter()
    for number in range(CHANGES):
        backend.set_current_key(number % CUSTOMERS)
        articles = basket.value() or {}
        articles[article(number)] = number
        basket.update(articles)
    return (perf_counter() - start) / CHANGES


def change_as_map(backend: RocksDBStateBackend) -> float:
    """Changes one article at a time in a map state. Returns seconds per change."""
    basket = backend.map_state(MapStateDescriptor("measured"))
    for customer in range(CUSTOMERS):
        backend.set_current_key(customer)
        basket.put_all({article(number): 0 for number in range(ARTICLES)})
    start = perf_counter()
    for number in range(CHANGES):
        backend.set_current_key(number % CUSTOMERS)
        basket.get(article(number))
        basket.put(article(number), number)
    return (perf_counter() - start) / CHANGES


def migrate(backend: RocksDBStateBackend) -> tuple[int, int]:
    """Uses the migrating map for half of the customers. Returns the numbers of moved and remaining baskets."""
    basket: MigratingMapState[str, int] = MigratingMapState(backend, OLD, NEW)
    for customer in range(0, CUSTOMERS, 2):
        backend.set_current_key(customer)
        before = basket.get(article(7))
        basket.put(article(7), (before or 0) + 1)
        assert len(list(basket.keys())) == ARTICLES
    return len(list(backend.keys(NEW.name))), len(list(backend.keys(OLD.name)))


def main() -> None:
    """Measures both, then migrates."""
    with tempfile.TemporaryDirectory() as directory:
        backend = RocksDBStateBackend(Path(directory) / "state")
        basket = backend.value_state(OLD)
        for customer in range(CUSTOMERS):
            backend.set_current_key(customer)
            basket.update({article(number): 0 for number in range(ARTICLES)})
        as_value, as_map = change_as_value(backend), change_as_map(backend)
        print(f"one article of {ARTICLES} changed in a value state: {as_value * 1e6:7.1f} microseconds")
        print(f"one article of {ARTICLES} changed in a map state:   {as_map * 1e6:7.1f} microseconds")
        print(f"the map state is {as_value / as_map:.0f} times as fast")
        moved, left = migrate(backend)
        print(f"after touching every second customer: {moved} baskets have moved, {left} are left")
        backend.close()


if __name__ == "__main__":
    main()
