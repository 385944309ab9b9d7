"""An async client of the REST API and the event stream, for programs and for the commands of `lychd`.

Needs no Django and no database. It decides nothing, and sends the token nowhere but to the one address it was given.

    async with Client("http://127.0.0.1:8000", token) as client:
        submitted = await client.submit("inventory", {"root": "."})
        async for message in client.follow(submitted.run["id"]):
            ...
"""

from lychd.client.messages import End, Event, Gap, Lost, Message, NotLychd, Resync
from lychd.client.rest import Cancelled, Client, Submitted
from lychd.client.wire import BadAddress, ConnectionLost, OutcomeUnknown, Problem, Unreachable

__all__ = [
    "BadAddress",
    "Cancelled",
    "Client",
    "ConnectionLost",
    "End",
    "Event",
    "Gap",
    "Lost",
    "Message",
    "NotLychd",
    "OutcomeUnknown",
    "Problem",
    "Resync",
    "Submitted",
    "Unreachable",
]
