"""Short histories, written down in any order of events: a `Story` sorts them by time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncio_operator_proof.history.checker import check_history
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.history.report import Report


class Story:
    """The events of a history. Of the same moment they happen as they are written down.

    Args:
        setting: the options of lookup 0.
    """

    def __init__(self, **setting: Any) -> None:
        self.before: list[Event] = [{"event": "setting", **setting}]
        self.after: list[Event] = []
        self.calls = 0

    def chained(self, lookup: int, **setting: Any) -> Story:
        self.before.append({"event": "setting", "lookup": lookup, **setting})
        return self

    def about(self, **fields: Any) -> Story:
        """Facts about the history itself."""
        self.before.insert(0, {"event": "history", **fields})
        return self

    def add(self, event: str, at: float, **fields: Any) -> Story:
        self.after.append({"event": event, "at": at, **fields})
        return self

    def task(
        self, at: float = 0.0, end: float | None = 100.0, task: str = "t", outcome: str = "finished", **more: Any
    ) -> Story:
        """A task. Its end goes behind what happens at the same moment only if it is written down last."""
        self.add("task_started", at, task=task, **more)
        if end is not None:
            self.add("task_ended", end, task=task, outcome=outcome)
        return self

    def row(self, at: float, out: float | None, row: int = 0, key: Any = None, task: str = "t", **more: Any) -> Story:
        """A row, read and emitted."""
        lookup = {"lookup": more["lookup"]} if "lookup" in more else {}
        self.add("row_in", at, task=task, row=row, key=key, **lookup)
        if out is not None:
            self.add("row_out", out, task=task, row=row, **{"status": "found", **more})
        return self

    def call(
        self, at: float, end: float | None, keys: list[Any] | None = None, outcome: str = "result", **more: Any
    ) -> Story:
        """A call of keys, or with ``rows=`` of rows. Fields of its end are those that `call_ended` has."""
        self.calls += 1
        task, call = more.pop("task", "t"), more.pop("call", f"c{self.calls}")
        begin = ("lookup", "rows", "attempt", "copy_of", "refresh", "weights")
        first = {name: more.pop(name) for name in begin if name in more}
        self.add("call_started", at, task=task, call=call, **({} if keys is None else {"keys": keys}), **first)
        if end is not None:
            self.add("call_ended", end, task=task, call=call, outcome=outcome, **more)
        return self

    def events(self) -> list[Event]:
        clean = [{name: value for name, value in event.items() if value is not None} for event in self.after]
        return [*self.before, *sorted(clean, key=lambda event: event["at"])]

    def report(self) -> Report:
        return check_history(self.events())


def broken(story: Story) -> set[str]:
    """The laws that a story breaks."""
    return set(story.report().broken)


def judged(story: Story, law: str) -> bool:
    """Whether a law held in a story, in at least one case. No other law may be broken."""
    report = story.report()
    report.raise_if_broken()
    return law in report.held


def case(*arguments: Any, **options: Any) -> Callable[[Callable[..., Story]], Story]:
    """What `seen` passes to a story that has several arguments."""
    return lambda story: story(*arguments, **options)


def seen(
    law: str, *, good: Sequence[Any] = (), bad: Sequence[Any] = (), fine: Sequence[Any] = ()
) -> Callable[[Callable[..., Story]], Callable[[], None]]:
    """Make a test of a story that is made with different arguments, each a `case` or the only argument.

    Args:
        good: those with which the law holds, in at least one case.
        bad: those with which it is broken, and no other law.
        fine: those with which no law is broken.
    """

    def make(story: Callable[..., Story]) -> Callable[[], None]:
        def story_of(one: Any) -> Story:
            return one(story) if callable(one) else story(one)

        def test() -> None:
            assert all(judged(story_of(one), law) for one in good)
            assert [broken(story_of(one)) for one in bad] == [{law}] * len(bad)
            assert [broken(story_of(one)) for one in fine] == [set()] * len(fine)

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return make
