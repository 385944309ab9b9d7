"""The word that a surface without a broker leaves in its transaction: this Run's hop wants to be published (ruling 30).

Sync surfaces (the admin, commands, a thread) admit with `run_once` and say so here, in the same transaction. The
Vessel listens and publishes; a word that nobody hears costs only time, the delivery relay is the net below.
"""

from __future__ import annotations

import uuid

from django.db import connections

CHANNEL = "lychd_hops"
LISTEN = f"listen {CHANNEL}"
NOTIFY = "select pg_notify(%(channel)s::text, %(run)s::text)"


def notify_hop(run_id: uuid.UUID, *, using: str = "default") -> None:
    """Tell the Vessel that the current hop of a Run waits; it hears of it when the transaction around this commits.

    Raises:
        django.db.Error: as the database raises it.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(NOTIFY, {"channel": CHANNEL, "run": str(run_id)})
