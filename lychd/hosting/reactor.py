"""Twisted's reactor on a loop of our own. Must run before anything imports `twisted.internet.reactor` or Daphne."""
# Twisted's reactor has no attributes for the checker.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import sys


def install() -> asyncio.AbstractEventLoop:
    """Make an event loop current, with Twisted's reactor on it.

    Returns:
        The loop on which everything of this process runs; the caller closes it.

    Raises:
        RuntimeError: another kind of reactor is installed already.
    """
    from twisted.internet import asyncioreactor

    present = sys.modules.get("twisted.internet.reactor")
    if present is None:
        loop = asyncio.new_event_loop()
        asyncioreactor.install(loop)
    elif isinstance(present, asyncioreactor.AsyncioSelectorReactor):
        loop = present._asyncioEventloop  # noqa: SLF001 - the only way to the loop of a reactor that stands
    else:
        raise RuntimeError(f"a reactor that is not asyncio's is installed: {type(present).__name__}")
    asyncio.set_event_loop(loop)

    import daphne.server

    # Daphne makes a loop when it is imported, also where it does not use it.
    if daphne.server.twisted_loop is not loop:
        daphne.server.twisted_loop.close()
    return loop
