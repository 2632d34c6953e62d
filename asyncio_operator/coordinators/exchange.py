"""How clients of a server that only stores decide: one of them answers the messages of all that wait.

A server keeps a version, a state and a mailbox for each budget. An exchange takes two round trips. The first posts the
message, and reads the rest. The client then answers all messages of the mailbox, and the second writes the new state
and the replies, if the version is still the one that was read. If not, another client was faster. What it wrote comes
back at once, and has the reply to this message too, if it was posted early enough. If it was not, the next to write has
read it. So an exchange takes three round trips at most, however many clients there are, if all of them take the same
time. No client ever holds a lock, and one that stalls stops no other.
Source: D. Hendler, I. Incze, N. Shavit, M. Tzafrir, "Flat Combining and the Synchronization-Parallelism Tradeoff",
SPAA 2010.

The stored text is a JSON object:

    state       of the budget
    answered    by client, of its last answered message: its identity, the time of the answer, and the reply, or null
                if the client has it already. Kept for `KEPT` seconds, longer than a message waits

A message is answered once: one that has an entry there is not answered again, and one that has waited for `ASK_TIMEOUT`
is dropped, because its client has gone.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from asyncio_operator.budget.terms import Json
from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.coordinators.contract import ASK_TIMEOUT, Answer
from asyncio_operator.errors import CoordinatorError

__all__ = ["Client", "Store", "Stored"]

KEPT = 2 * ASK_TIMEOUT

MOST_MESSAGES = 64
"""Messages that one client answers at a time, the oldest first: so that none computes for long."""


class Stored(NamedTuple):
    """What a server has of one budget.

    Attributes:
        version: changes with the text; empty if nothing is stored.
        text: empty if nothing is stored.
        mailbox: messages that wait, by identity: the server's seconds at which each was posted, a space, and the
            message.
        now: the server's seconds.
    """

    version: str
    text: str
    mailbox: Mapping[str, str]
    now: float


class Store(Protocol):
    """One budget at one server. Each method takes one round trip, and is applied as a whole.

    Attributes:
        shown: names the server in messages, without secrets.
        place: names what holds the text.
    """

    shown: str
    place: str

    async def post(self, identity: str, message: str) -> Stored:
        """Put a message into the mailbox, and read all."""
        ...

    async def swap(self, version: str, new_version: str, text: str, answered: list[str]) -> Stored | None:
        """Replace the text and remove messages from the mailbox, if the version is still this one, and return None;
        otherwise read all."""
        ...


class Client:
    """The exchanges of one client with one store, one at a time."""

    def __init__(self, store: Store, answer: Answer, clock: Clock = monotonic) -> None:
        self._store = store
        self._answer = answer
        self._clock = clock
        self._name = secrets.token_hex(8)
        self._count = 0

    async def ask(self, message: Json) -> Json:
        """The reply. Its "sent" is when a request was sent after which the server's clock was read for the reply."""
        store = self._store
        self._count += 1
        identity = f"{self._name} {self._count}"
        posted = sent = self._clock()
        stored = await store.post(identity, _as_text(message))
        while True:
            found = self._opened(stored.text)
            answered = found["answered"].get(self._name)
            if answered is not None and answered[0] == identity:
                return {**answered[2], "sent": posted}
            others, over = _mail(stored, found["answered"], identity)
            text, reply = self._decided(stored, found, others, identity, message)
            next_sent = self._clock()
            later = await store.swap(stored.version, secrets.token_hex(8), text, [identity, *others, *over])
            if later is None:
                return {**reply, "sent": sent}
            sent, stored = next_sent, later

    def _decided(
        self, stored: Stored, found: Json, others: dict[str, str], identity: str, message: Json
    ) -> tuple[str, Json]:
        """The new text, and the reply to the own message."""
        now = stored.now
        try:
            for other, text in others.items():
                found["state"], reply = self._answer(found["state"], json.loads(text), now)
                found["answered"][_client(other)] = [other, now, reply]
        except Exception:
            # The client of a message that cannot be answered hears so when it tries itself. The others do so too.
            found = self._opened(stored.text)
        state, reply = self._answer(found["state"], message, now)
        found["answered"][self._name] = [identity, now, None]
        answered = {client: entry for client, entry in found["answered"].items() if now - entry[1] <= KEPT}
        return _as_text({"state": state, "answered": answered}), reply

    def _opened(self, text: str) -> Json:
        """The stored text as an object.

        Raises:
            CoordinatorError: it is something else.
        """
        if not text:
            return {"state": None, "answered": {}}
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.keys() == {"state", "answered"}:
            return found
        raise CoordinatorError(
            f"the coordinator {self._store.shown}: {self._store.place} is not the state of a budget; delete it, or "
            "take another name for the budget",
            lasting=True,
        )


def _mail(stored: Stored, answered: Json, own: str) -> tuple[dict[str, str], list[str]]:
    """The messages of others that wait for an answer, by identity, and the identities of those that wait no longer."""
    waiting: dict[str, str] = {}
    over = []
    for identity, mail in sorted(stored.mailbox.items(), key=_posted):
        entry = answered.get(_client(identity))
        if stored.now - _posted((identity, mail)) > ASK_TIMEOUT or (entry is not None and entry[0] == identity):
            over.append(identity)
        elif identity != own and len(waiting) < MOST_MESSAGES:
            waiting[identity] = mail.partition(" ")[2]
    return waiting, over


def _posted(mail: tuple[str, str]) -> float:
    return float(mail[1].partition(" ")[0])


def _client(identity: str) -> str:
    return identity.partition(" ")[0]


def _as_text(message: Json) -> str:
    return json.dumps(message, separators=(",", ":"))
