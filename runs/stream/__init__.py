"""What readers of Runs are told, made once for both edges: one Run's events, and the changes of all Runs of a tenant.

`run` and `feed` know nothing of HTTP or WebSocket; the edges turn their messages into bytes. Nothing here writes.
"""

from __future__ import annotations

from runs.stream.feed import Feed, Feeds
from runs.stream.messages import Message, What
from runs.stream.run import RunStream
from runs.stream.sources import Sources, Writable
from runs.stream.table import RUNS, Row, Table

__all__ = ["RUNS", "Feed", "Feeds", "Message", "Row", "RunStream", "Sources", "Table", "What", "Writable"]
