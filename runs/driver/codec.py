"""The form of a checkpoint: a list of snapshots, of which the first resumable one says where a Run returns (1.4)."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import Any

from runs import payloads

CREATED = "created"


@dataclass(frozen=True, slots=True)
class Resumable:
    """The boundary from which a Run may return: a node about to be entered, its visit, the state before it."""

    node: str
    visit: int
    state: Any
    wait: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A checkpoint that already carries the end: the Run only has to be settled with it."""

    output: Any


def before_node(
    run_id: str, node: str, visit: int, hop: int, state_json: str, wait: dict[str, Any] | None = None
) -> str:
    """The snapshot list, as JSON text, of a Run about to enter `node`. `state_json` is checked JSON text.

    `wait` names the kind and the owner that the Run waits for before it enters (ruling 25).
    """
    head = payloads.canonical(
        [
            {
                "hop": hop,
                "id": f"{run_id}:{visit}",
                "kind": "node",
                "node": node,
                "status": CREATED,
                "visit": visit,
                "wait": wait,
            }
        ]
    )
    return f'{head[:-2]},"state":{state_json}}}]'


def resumable(snapshots: Any) -> Resumable | Ended | None:
    """What the checkpoint says to do next; None when it says nothing that can be done.

    A snapshot that names a node but not all of its boundary is no reason to look further: what follows it is older.
    """
    for snapshot in snapshots if isinstance(snapshots, list) else []:
        match snapshot:
            case {"kind": "end", "result": output}:
                return Ended(output)
            case {"kind": "node", "status": "created"}:
                return _boundary(snapshot)
            case _:
                continue
    return None


def _names_an_owner(wait: Any) -> bool:
    match wait:
        case {"kind": str(), "owner": str(owner)}:
            with contextlib.suppress(ValueError):
                return bool(uuid.UUID(owner))
        case _:
            pass
    return False


def _boundary(snapshot: dict[str, Any]) -> Resumable | None:
    match snapshot:
        case {"node": str(node), "visit": int(visit), "state": state} if visit >= 0:
            wait = snapshot.get("wait")
            return Resumable(node, visit, state, wait) if wait is None or _names_an_owner(wait) else None
        case _:
            return None
