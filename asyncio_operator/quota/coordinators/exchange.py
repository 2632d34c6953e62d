"""How clients of a server that only stores decide: one of them answers the messages of all that wait.

A server keeps a version, a state and a mailbox for each budget. An exchange takes two round trips. The first posts the
message, and reads the rest. The client then answers all messages of the mailbox, and the second writes the new state
and the replies, if the version is still the one that was read. If not, another client was faster. What it wrote comes
back at once, and has the reply to this message too, if it was posted early enough. If it was not, the next to write has
read it. So an exchange takes three round trips at most, however many clients there are, if all of them take the same
time. No client ever holds a lock, and one that stalls stops no other.
Source: D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat Combining and the Synchronization-Parallelism Tradeoff",
SPAA 2010.

The stored text is the `Content` as a JSON object. A server that is not among those that have written it may have an
older copy: another server has failed, or it was started again and has not kept the last writes. The decision hears of
this. Messages of others in such a mailbox may be as old, and may have been answered since, so they are dropped.

A message is answered once: one that is not newer than its client's entry there is not answered again, and one that has
waited for `ASK_TIMEOUT` is dropped, because its client has gone. So is what cannot be read or answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import methodcaller
from typing import Any, NamedTuple

from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.quota.terms import ASK_TIMEOUT, Answer, Json
from asyncio_operator.services.causes import Cause, caused, own_words
from asyncio_operator.services.secrets import Secrets

KEPT = 2 * ASK_TIMEOUT

MOST_MESSAGES = 64  # Messages that one client answers at a time, the oldest first: so that none computes for long.

MOST_SERVERS = 16
"""Servers whose names are kept. Each of several that share their data may answer some time, without a loss."""


class Stored(NamedTuple):
    """What a server has of one budget."""

    version: str  # Changes with the text; empty if nothing is stored.
    text: str  # Empty if nothing is stored.
    # Messages that wait, by identity: the server's seconds at which each was posted, a space, and the message.
    mailbox: Mapping[str, str]
    now: float  # The server's seconds.
    server: str = ""  # Names the server as long as it loses nothing that was written; empty if that is not known.


class Content(NamedTuple):
    """What is stored of one budget."""

    state: Any
    # By client, of its last answered message: its identity, the time of the answer, and the reply, or None if the
    # client has it already. Kept for `KEPT` seconds, longer than a message waits.
    answered: dict[str, list[Any]]
    servers: list[str]  # Names of the servers that have written it, the latest last.


class ServerCoordinator(ABC):
    """One budget at one server: its `Coordinator`. Requests take one round trip each, and are applied as a whole."""

    lost: tuple[type[Exception], ...] = ()  # The errors of a lost connection.

    def __init__(self, shown: str, place: str, answer: Answer, clock: Clock = monotonic) -> None:
        self.shown = shown  # Names the server in messages, without secrets.
        self.place = place  # Names what holds the text.
        self._answer = answer
        self._clock = clock
        self._own_name = secrets.token_hex(8)
        self._count = 0

    @abstractmethod
    async def connect(self) -> None:
        """Connect to the server, unless connected."""

    @abstractmethod
    async def post(self, identity: str, message: str) -> Stored:
        """Put a message into the mailbox, and read all."""

    @abstractmethod
    async def swap(self, stored: Stored, new_version: str, text: str, answered: list[str]) -> Stored | None:
        """Replace the text and remove messages from the mailbox, if version and server are still those of `stored`,
        and return None; otherwise read all."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    async def drop(self) -> None:
        """Give up the connection, which may be broken."""
        await self.close()

    @abstractmethod
    def cause_of(self, error: Exception) -> tuple[Cause, Secrets, str]:
        """What an error means, the secrets that it may hold, and what a user can do about it, if that is known."""

    async def ask(self, message: Json) -> Json:
        """The reply. Its "sent" is when a request was sent after which the server's clock was read for the reply."""
        try:
            # It has a time of its own, so that a server that is far away has time for the exchange.
            async with asyncio.timeout(ASK_TIMEOUT):
                await self.connect()
            async with asyncio.timeout(ASK_TIMEOUT):
                return await self._exchanged(message)
        except CoordinatorError as error:
            problem = error
        except Exception as error:
            cause, hidden, remedy = self.cause_of(error)
            if cause.retryable:
                remedy += "; check that the server runs, and that this process can reach it"
            text = f"the coordinator {self.shown}: {cause.text}{own_words(error, hidden)}{remedy}"
            problem = caused(CoordinatorError(text, lasting=cause.retryable is False), error, hidden)
        except asyncio.CancelledError:
            await self.drop()
            raise
        # The address may lead to another server by now, as after a failover.
        await self.drop()
        raise problem

    async def _exchanged(self, message: Json) -> Json:
        self._count += 1
        identity = f"{self._own_name} {self._count}"
        posted = sent = self._clock()
        try:
            stored = await self.post(identity, _as_text(message))
        except self.lost:
            # Perhaps long ago. The same message may be posted twice, unlike a swap.
            await self.drop()
            await self.connect()
            stored = await self.post(identity, _as_text(message))
        while True:
            found = self._opened(stored)
            answered = found.answered.get(self._own_name)
            if answered is not None and answered[0] == identity:
                return {**answered[2], "sent": posted}
            others, over = _mail(stored, identity)
            if _is_new(stored, found):
                others, over = {}, [one for one in stored.mailbox if one != identity]
            text, reply = self._decided(stored, found, others, identity, message)
            next_sent = self._clock()
            later = await self.swap(stored, secrets.token_hex(8), text, [identity, *others, *over])
            if later is None:
                return {**reply, "sent": sent}
            sent, stored = next_sent, later

    def _decided(
        self, stored: Stored, found: Content, others: dict[str, str], identity: str, message: Json
    ) -> tuple[str, Json]:
        """The new text, and the reply to the own message."""
        now, (state, answered, servers) = stored.now, found
        new_server = _is_new(stored, found)
        for other, text in others.items():
            client = other.partition(" ")[0]
            entry = answered.get(client)
            if entry is not None and _number(other) <= _number(entry[0]):
                continue
            try:
                state, reply = self._answer(state, json.loads(text), now, new_server)
            except Exception:
                # Its client hears so when it tries itself. The state may have been changed.
                rest = {one: text for one, text in others.items() if one != other}
                return self._decided(stored, self._opened(stored), rest, identity, message)
            answered[client] = [other, now, reply]
        state, reply = self._answer(state, message, now, new_server)
        answered[self._own_name] = [identity, now, None]
        kept = {}
        for client, (last, answered_at, its_reply) in answered.items():
            if now - answered_at <= KEPT:
                # The server's clock may have been set back.
                kept[client] = [last, min(answered_at, now), its_reply]
        if stored.server and stored.server not in servers:
            servers = [*servers, stored.server][-MOST_SERVERS:]
        return _as_text(Content(state, kept, servers)._asdict()), reply

    def _opened(self, stored: Stored) -> Content:
        """What the stored text says; CoordinatorError if it is something else."""
        if not stored.text:
            return Content(None, {}, [])
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            found = Content(**json.loads(stored.text))
            kinds = isinstance(found.state, dict | None), isinstance(found.answered, dict), type(found.servers) is list
            if all(kinds) and all(
                isinstance(entry, list)
                and len(entry) == 3
                and isinstance(entry[0], str)
                and isinstance(entry[1], int | float)
                and abs(entry[1]) < 1e15
                and isinstance(entry[2], dict | None)
                for entry in found.answered.values()
            ):
                return found
        raise CoordinatorError(
            f"the coordinator {self.shown}: {self.place} is not the state of a budget; delete it, or "
            "take another name for the budget",
            lasting=True,
        )


def _is_new(stored: Stored, found: Content) -> bool:
    """Whether the server may have an older copy of the text than the last server had."""
    return bool(stored.text and stored.server) and stored.server not in found.servers


def _mail(stored: Stored, own: str) -> tuple[dict[str, str], list[str]]:
    """The messages of others that wait for an answer, by identity, and the identities of those that wait no longer."""
    waiting, over = [], []
    for identity, mail in stored.mailbox.items():
        posted, _, message = str(mail).partition(" ")
        try:
            time = float(posted)
        except ValueError:
            time = math.nan
        if not stored.now - time <= ASK_TIMEOUT:
            over.append(identity)
        elif identity != own:
            waiting.append((time, identity, message))
    return {identity: message for _, identity, message in sorted(waiting)[:MOST_MESSAGES]}, over


def _number(identity: str) -> float:
    """Of a message among those of its client; 0 if no client has made the identity."""
    number = identity.partition(" ")[2]
    return float(number) if number.isdecimal() else 0


def _as_text(message: Json) -> str:
    return json.dumps(message, separators=(",", ":"), default=methodcaller("as_json"))
