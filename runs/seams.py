"""Named points at which a test may pause or break a process. No-ops in production.

The list of names is also the list of crash points that the docs explain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Probe = Callable[[str], Awaitable[None]]

_installed: dict[str, Probe] = {}


async def seam(name: str) -> None:
    """Stop here if a test installed a probe under `name`; else return at once."""
    if _installed:
        probe = _installed.get(name)
        if probe is not None:
            await probe(name)


def install(name: str, probe: Probe) -> Callable[[], None]:
    """Install `probe` at `name`; returns the function that removes it again."""
    _installed[name] = probe

    def remove() -> None:
        _installed.pop(name, None)

    return remove
