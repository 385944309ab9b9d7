"""What node code that asks Django's ORM leaves behind: nothing that a request's end would tidy up ends here.

Sync code leaves a connection with its thread, async code leaves one for all nodes with the thread of the loop's sync
calls.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, close_old_connections, connections


def give_back() -> None:
    """Give this thread's connections back to Django's pool, which has fewer of them than there are node threads."""
    close_old_connections()


async def close_lost(error: BaseException) -> None:
    """Close the connection of async queries if it was lost: no later query of any node would succeed on it.

    Args:
        error: what ended a node; nothing is looked at unless it comes from the database.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DatabaseError | InterfaceError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        await sync_to_async(_close_lost)()


def _close_lost() -> None:
    for connection in connections.all(initialized_only=True):
        # One that works stays: another node may be in the middle of a result that it reads.
        if connection.errors_occurred and not connection.in_atomic_block:
            if connection.is_usable():
                connection.errors_occurred = False
            else:
                connection.close()
