"""What the runs of this process may take of a budget: it asks the budget's coordinator, and wakes runs that wait.

There is one `Share` for each event loop and those of its budgets that are equal. It drives `Permits`, which decide: at
most one message is on its way at a time, each with a time limit, and none is sent while nothing runs.

Runs that wait get equal parts of the limits, as workers do, however many calls that is. Each run has a place, which
each of its calls moves on by the part of a limit that it takes, and of those that wait the lowest goes next. A run that
wanted little may be behind by `BEHIND`, and not save up more. One that does not take its turn loses it. Source:
P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996.

If no reply comes for the budget's `patience`, every call that waits then fails with an error that names the coordinator
(law G7), and so do later ones until a reply comes. A coordinator that has the budget with other limits ends all runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

from asyncio_operator.checks import seconds
from asyncio_operator.clock import monotonic
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import clock_of, close_within, start_task
from asyncio_operator.errors import AsyncOperatorError, ConfigurationError, CoordinatorError, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.loop.forks import forget_in_child
from asyncio_operator.policies.retry import LONGEST_WAIT
from asyncio_operator.policies.shutdown import CLOSE_TIMEOUT
from asyncio_operator.quota.caps import problem
from asyncio_operator.quota.coordinators.addresses import (
    Coordinator,
    LocalCoordinator,
    States,
    answer,
    coordinator_of,
    elsewhere,
    unused,
)
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import Budget, definition, warn_unweighed
from asyncio_operator.quota.terms import ASK_TIMEOUT, FORGOTTEN
from asyncio_operator.quota.usage import ONE, FreeStarts, Hint, Weigh, Weights

logger = logging.getLogger("asyncio_operator.budget")

LONGEST_ASK = 3 * ASK_TIMEOUT
"""Seconds after which a message counts as lost, if its coordinator does not end it before."""

A_TURN = 0.01  # Seconds that a woken run has for asking again, before runs behind it go first.
BEHIND = 0.5  # The part of a limit that a run may take before others because it has used less than they.

SIGN_OF_LIFE = FORGOTTEN / 2
"""Seconds after which a worker that has nothing to say sends a message nevertheless, if its calls run: its budget is in
use, and no other application may take the name for other limits (law G1)."""

LAST_WAIT = 1.0
"""Seconds that the end of the last run of a loop waits, so that what it held is given back before the loop ends."""


class Share:
    """One budget on one loop. `worker` names it to the coordinator; no other has this name. None: one is made."""

    def __init__(self, budget: Budget, coordinator: Coordinator, idle: float, worker: str | None = None) -> None:
        # A run may leave when its loop has ended: asyncio.run cancels what is left, and then runs it to its end.
        self._loop = loop = asyncio.get_running_loop()
        self.over = False  # Whether it was closed; another one takes its place.
        self.now = clock = clock_of(loop)
        self.permits = Permits(budget, worker or os.urandom(16).hex())  # What is held.
        self._name = budget.name
        self._patience = seconds(budget.patience)
        self._slotted = budget.in_flight is not None or bool(budget.spend)
        longest = {limit.unit: max(LONGEST_WAIT, seconds(limit.per)) for limit in budget.limits}
        self._longest = {**longest, "retry_after": max(longest.values(), default=LONGEST_WAIT)}
        self._coordinator = coordinator
        self._idle = idle  # Seconds without runs after which connections to the coordinator are closed.
        # Of its runs. `waiting`: those that wait, the first ones first; True: woken, and not heard of since.
        self.seats: dict[Seat, None] = {}
        self.waiting: dict[Seat, bool] = {}
        self._served = 0.0
        self._exchange: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._leaving = False
        self._due = math.inf
        self._not_before = -math.inf
        self._unanswered_since: float | None = None
        self._problem = coordinator.shown
        self._gone: str | None = None
        self._ignored: set[str] = set()
        # Its own: they outlive a run, as what is granted does.
        self._timers = Timers(clock)
        self._lose_patience = partial(self._give_up, f" in time for {self._patience:g} s")

    # -- runs

    def join(self, seat: Seat) -> None:
        if not self.seats:
            self._timers.remind(self._end_silence, math.inf)
        self._leaving = False
        self.permits.collect()
        self.seats[seat] = None

    def leave(self, *seats: Seat) -> None:
        self.permits.collect()
        for seat in seats:
            self.seats.pop(seat, None)
            self.drop(seat)
        if not self.seats:
            self.permits.rest()
            self._leaving = True
            self._arrange()

    async def settled(self) -> None:
        """Give back what cancelled calls held too, and wait for this, `LAST_WAIT` at most, unless other runs go on."""
        self.leave()
        ends = self.now() + LAST_WAIT
        while not self.seats and (left := ends - self.now()) > 0:
            tasks = [task for task in (self._exchange, self._closing) if task is not None and not task.done()]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=left)

    def drop(self, seat: Seat) -> None:
        """The seat's call will never start."""
        if self.waiting.pop(seat, None) is not None:
            self._tell()

    def turn(self, seat: Seat, start: float, now: float) -> float:
        """When a run may start its call, where a call may start at `start` as far as permits go."""
        waiting = self.waiting
        if start <= now:
            seat.place = max(seat.place, self._served - BEHIND)
            first = min(waiting, key=lambda one: one.place) if waiting else seat
            if first is seat or seat.place < first.place:
                return now
            # It is the turn of another run, perhaps of a heavier call.
            start = math.inf
        elif self._gone is not None:
            self.drop(seat)
            # A new one each time: an error keeps the frames through which it went.
            raise CoordinatorError(self._gone)
        waiting[seat] = False
        self._arrange()
        return start

    def started(self, seat: Seat, weights: Weights) -> None:
        """A run starts the call for which it was its turn."""
        waiting = self.waiting
        waiting.pop(seat, None)
        self._served = max(self._served, seat.place)
        seat.place += self.permits.part(weights)
        if waiting:
            # Its next call may come before theirs, and asks soon if there is one.
            waiting[seat] = True
            self._tell()

    def room(self) -> None:
        """Calls have returned."""
        heard, self.permits.free.heard = self.permits.free.heard, False
        if self.waiting and (self._slotted or heard):
            self._tell()
        if self._due == math.inf:
            self._arrange()

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None, now: float) -> None:
        """What the source has said about its limits; see `usage.hint`."""
        believed = {unit: said for unit, said in limits.items() if self._is_believed(unit, said)}
        if retry_after is not None and not self._is_believed("retry_after", Hint(reset_after=retry_after)):
            retry_after = None
        if retry_after is not None:
            logger.info("the budget %r starts no call for %.1f s: its source asks for it", self._name, retry_after)
        self.permits.hint(believed, retry_after, now)
        self._arrange()

    def _is_believed(self, unit: str, said: Hint) -> bool:
        wrong = problem(said, self._longest.get(unit, LONGEST_WAIT))
        if wrong is not None and unit not in self._ignored:
            self._ignored.add(unit)
            logger.warning("the budget %r ignores what its source says about %s: %s", self._name, unit, wrong)
        return wrong is None

    def _tell(self) -> None:
        """Something has changed for the runs that wait."""
        if not self.waiting:
            return
        for seat in list(self.waiting):
            self.waiting[seat] = True
            seat.news()
        self._timers.remind(self._pass_turns, self.now() + A_TURN)

    def _pass_turns(self) -> None:
        """Forget those who wait no longer: their calls have no elements left, or their runs no place for a call."""
        passed = [seat for seat, woken in self.waiting.items() if woken]
        for seat in passed:
            del self.waiting[seat]
        if passed:
            self._tell()

    # -- messages

    def _arrange(self) -> None:
        """Send the next message when it is due."""
        if self._exchange is not None or self.over:
            return
        now = self.now()
        due = self.permits.ask_at(now)
        leaving, self._leaving = self._leaving, False
        if leaving and due < math.inf:
            # At once and not by a timer: the loop may end now, and the task that it cancels closes the connection.
            self._send()
            return
        if due == math.inf and not (self.seats or self._idle):
            self._rest()
        elif due == math.inf:
            self._timers.remind(self._end_silence, now + (SIGN_OF_LIFE if self.seats else self._idle))
        due = max(due, self._not_before)
        if due < self._due:
            self._due = due
            self._timers.remind(self._ask, due)

    def _ask(self) -> None:
        self._due = math.inf
        now = self.now()
        if max(self.permits.ask_at(now), self._not_before) > now:
            # Something has changed since.
            self._arrange()
        else:
            self._send()

    def _end_silence(self) -> None:
        if self.seats and self.permits.running():
            self._send()
        elif not self.seats and self._exchange is None:
            self._rest()

    def _send(self) -> None:
        if self._exchange is None and not self.over:
            self._exchange = start_task(self._exchanged(), loop=self._loop)

    async def _exchanged(self) -> None:
        sent = self.now()
        message = self.permits.message(sent)
        if self._unanswered_since is None:
            self._unanswered_since = sent
            self._timers.remind(self._lose_patience, sent + self._patience)
        try:
            async with asyncio.timeout(LONGEST_ASK):
                reply = await self._coordinator.ask(message)
            now = self.now()
            if self.permits.answered(reply, reply.get("sent", sent), now):
                self._unanswered_since = self._gone = None
                self._timers.remind(self._lose_patience, math.inf)
            else:
                self.permits.lost(now)
                self._problem = (
                    f"{self._coordinator.shown}: its last answer took {now - sent:.2g} s, and permits end earlier; "
                    "take a coordinator that is nearer, or longer windows"
                )
        except asyncio.CancelledError:
            # The loop ends, or a function has cancelled tasks that are not its own.
            self.permits.lost(self.now())
            if not self.seats:
                self.over = True
                await self._close()
            self._go_on()
            raise
        except ConfigurationError as error:
            # It ends all runs.
            self.over = True
            for seat in list(self.seats):
                seat.fail(error)
            self._rest()
        except Exception as error:
            self.permits.lost(self.now())
            named = isinstance(error, CoordinatorError)
            self._problem = str(error) if named else f"{self._coordinator.shown}: {describe_error(error)}"
            if isinstance(error, CoordinatorError) and error.lasting:
                self._give_up()
            elif not self.seats:
                # Nothing needs it. What was granted lapses.
                self._rest()
        self._go_on()

    def _go_on(self) -> None:
        """An exchange is over."""
        self._exchange = None
        self._tell()
        # With the next message goes back what no run has taken by then.
        self._not_before = self.now() + (A_TURN if self.waiting else 0.0)
        self._arrange()

    def _give_up(self, since: str = "") -> None:
        """From now on every call that would have to wait fails, until there is a reply."""
        self._gone = (
            f"no call may start under the budget {self._name!r}, because there is no answer{since} from {self._problem}"
        )
        self._tell()

    def _rest(self) -> None:
        """Nothing more is asked."""
        self.over = True
        self._timers.close()
        self._closing = start_task(self._close(), loop=self._loop)

    async def _close(self) -> None:
        where = f"the connection to {self._coordinator.shown}"
        error = await close_within(where, self._coordinator.close, CLOSE_TIMEOUT)
        if isinstance(error, asyncio.CancelledError):
            raise error
        if error is not None:
            logger.warning("closing %s failed: %s", where, describe_error(error))


class Reservation:
    """What one run may take of a budget: it gets its seat in a share when it makes its first call. Each of `finds`
    returns the share in a budget that the calls keep to: one or two. A share that rests may be closed before the first
    call."""

    def __init__(self, *finds: Callable[[], Share]) -> None:
        self._finds = finds
        self._shares: list[Share] = []

    def join(self, news: Callable[[], None], fail: Callable[[BaseException], object]) -> Seat:
        """The run is about to ask for the first time. `news` is called when `take` may give another answer than before;
        `fail` ends the run with an error."""
        self._shares = [find() for find in self._finds]
        first, *others = self._shares
        return Seat(first, news, fail, *[Seat(share, news, fail) for share in others])

    async def settled(self) -> None:
        """See `Share.settled`. For the end of a run, on its loop."""
        for share in self._shares:
            await share.settled()


class Seat:
    """One run's place in a share. Times are those of the run's loop. Every method returns at once."""

    __slots__ = ("_beside", "fail", "free", "news", "permits", "place", "share")

    def __init__(
        self,
        share: Share,
        news: Callable[[], None],
        fail: Callable[[BaseException], object],
        # Its place in a second share, to which its calls keep too. What the source says reaches the first, which more
        # tasks share.
        beside: Seat | None = None,
    ) -> None:
        self.share = share
        self.permits = share.permits
        self._beside = beside
        # Calls that may start without a question.
        self.free = share.permits.free if beside is None else FreeStarts(heard=True)
        self.news = news
        self.fail = fail
        self.place = 0.0  # Among the runs that wait; see the head of this module.
        share.join(self)

    def leave(self) -> None:
        """The run starts no further call."""
        self.share.leave(self)
        if self._beside is not None:
            self._beside.leave()

    def take(self, weights: Weights, now: float) -> float:
        """Start a call of these weights, if it may start now. Returns the earliest time, not before `now`, at which it
        may. Infinity: that is not known yet, and `news` will be called. At most the call that was asked for last waits.
        BudgetExceeded if such a call can never start; CoordinatorError if nothing may start, because what is shared
        with others is not known."""
        permits, share, beside = self.permits, self.share, self._beside
        if beside is not None and (start := beside.next_start(weights, now)) > now:
            # A call that can never start fails at once (law G6).
            permits.check(weights)
            return start
        if len(share.seats) > 1 or share.waiting:
            if (start := self.next_start(weights, now)) <= now:
                permits.started(weights, now)
                share.started(self, weights)
        elif (start := permits.take(weights, now)) > now:
            return share.turn(self, start, now)
        elif weights is ONE:
            permits.lend()
        if beside is not None and start <= now:
            beside.take(weights, now)
        return start

    def next_start(self, weights: Weights, now: float) -> float:
        """See `Permits.next_start`; and it is the turn of this run."""
        try:
            start = self.permits.next_start(weights, now)
        except AsyncOperatorError:
            self.share.drop(self)
            raise
        share = self.share
        return start if start <= now and not share.waiting else share.turn(self, start, now)

    def ended(self) -> None:
        """A call that was started has returned, and nothing else is known of it."""
        free = self.permits.free
        free.ended += 1
        if free.heard:
            self.share.room()
        if self._beside is not None:
            self._beside.ended()

    def returned(
        self, weights: Weights, settled: Weights | None, started: float, now: float, billed: bool = True
    ) -> None:
        """A call that was started with these weights has returned, in time or late, perhaps after `leave`. `settled` is
        what it really weighed, by unit; for other units the estimate holds. `started` is the time that `take` got.
        `billed`: whether the source may bill it; see `usage.billed`."""
        self.permits.returned(weights, settled, started, now, billed)
        self.share.room()
        if self._beside is not None:
            self._beside.returned(weights, settled, started, now, billed)


class Shares:
    """The shares of this process, by loop and budget. Equal budgets of one loop have one share."""

    def __init__(self, new_id: Callable[[], str] = lambda: os.urandom(16).hex()) -> None:
        self._new_id = new_id  # Returns the name of a worker, which no other worker has.
        # The shares, and perhaps some that are over.
        self.open: dict[tuple[asyncio.AbstractEventLoop, str], Share] = {}
        self._states_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, States] = WeakKeyDictionary()

    def allowance(self, budget: Budget, idle: float = 0.0) -> Reservation:
        """What one run on the running loop may take of a budget. After `idle` seconds without runs the connections to
        the coordinator are closed."""
        both = (budget,) if budget.beside is None else (budget, budget.beside)
        return Reservation(*(partial(self._share, one, idle) for one in both))

    def _share(self, budget: Budget, idle: float) -> Share:
        loop = asyncio.get_running_loop()
        where = budget.coordinator or repr(budget.reach)
        key = loop, fingerprint((budget.name, definition(budget), budget.patience, where))
        share = self.open.get(key)
        if share is None or share.over:
            for place in [place for place, one in self.open.items() if one.over or place[0].is_closed()]:
                del self.open[place]
            if budget.coordinator is not None or budget.reach is not None or clock_of(loop) is monotonic:
                coordinator = coordinator_of(budget)
            else:
                # A loop with a time of its own, as in tests.
                kept = self._states_of_loops.setdefault(loop, States(answer, loop.time, unused))
                elsewhere[budget.name] = kept
                coordinator = LocalCoordinator(kept, budget.name)
            share = self.open[key] = Share(budget, coordinator, idle, self._new_id())
        return share


shares = Shares()

# No loop of the parent runs in a forked child.
forget_in_child(shares.open.clear)


def own_allowance(budget: Budget | None, called: str, weigh: Weigh | None) -> Reservation | None:
    """What a run outside of Spark may take of its budget, if it has one. See `warn_unweighed`: in Spark the driver does
    this."""
    if budget is None:
        return None
    warn_unweighed(budget, called, weigh)
    return shares.allowance(budget)
