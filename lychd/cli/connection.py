"""Where the Vessel is and with which token it is asked: the environment, else the data folder.

The local token goes to this machine only: an address elsewhere needs a token of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lychd.client.wire import loopback
from runs.errors import Refused

URL, TOKEN = "LYCHD_URL", "LYCHD_TOKEN"
NOTE, TOKEN_FILE = "vessel.json", "operator.token"


class NoVessel(Refused):
    """No running Vessel was found."""

    code, title = "no_vessel", "No Vessel"


class NoToken(Refused):
    """There is no token to ask with."""

    code, title = "no_token", "No token"


@dataclass(frozen=True, slots=True)
class Connection:
    """What a client command works with.

    Attributes:
        token_from: names the token's origin in sentences.
        source: what a submission names as its source; only the local operator Sigil is known to allow it.
        note: the `vessel.json` that told the address; None when the environment did.
        pid: of the Vessel, as the note has it.
    """

    url: str
    token: str
    token_from: str
    source: str | None = None
    note: Path | None = None
    pid: int | None = None

    def where_now(self) -> str:
        """The address as it is now: a Vessel that was started again may listen elsewhere."""
        if self.note is None:
            return self.url
        try:
            return _read_note(self.note)[0]
        except Refused:
            return self.url

    def silence(self) -> str:
        """Why nobody answers, as far as this machine can tell, and what to do."""
        if self.note is None:
            return f"No Vessel answers at {self.url} ({URL})."
        died = self.pid is not None and not _alive(self.pid)
        if died:
            return (
                f"The Vessel that {self.note} names (pid {self.pid}) is gone without having removed it: "
                "start one with `lychd up`."
            )
        return f"The Vessel that {self.note} names does not answer at {self.url}."


def find(data: Path, environ: Mapping[str, str] | None = None) -> Connection:
    """The Vessel to speak to.

    Args:
        data: the data folder.

    Raises:
        NoVessel: nobody told an address.
        NoToken: nobody told a token, or not one for that address.
    """
    env = os.environ if environ is None else environ
    url, token = env.get(URL, "").strip(), env.get(TOKEN, "").strip()
    pid, note = None, None
    if not url:
        note = data / NOTE
        url, pid = _read_note(note)
    if token:
        return Connection(url, token, TOKEN, note=note, pid=pid)
    if note is None and not _here(url):
        raise NoToken(f"{URL} points to another machine, so it needs its own token: set {TOKEN}.")
    path = data / TOKEN_FILE
    return Connection(url, _read_token(path), str(path), source="cli", note=note, pid=pid)


def _read_note(path: Path) -> tuple[str, int | None]:
    try:
        found: Any = json.loads(path.read_text())
        url, pid = str(found["url"]), found.get("pid")
    except FileNotFoundError as error:
        raise NoVessel(
            f"No Vessel is running on the data folder {path.parent}: start one with `lychd up`, "
            f"or say with --data or {URL} where it is."
        ) from error
    except OSError as error:
        raise NoVessel(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoVessel(f"{path} is damaged: start the Vessel again, or set {URL}.") from error
    return url, pid if isinstance(pid, int) else None


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError as error:
        raise NoToken(
            f"There is no token in {path}: `lychd up` keeps one there unless the operator Sigil was revoked; "
            f"else set {TOKEN}."
        ) from error
    except OSError as error:
        raise NoToken(f"The token in {path} cannot be read: {error.strerror}; set {TOKEN} instead.") from error
    except UnicodeDecodeError as error:
        raise NoToken(f"{path} holds no token: start the Vessel again, or set {TOKEN}.") from error


def _here(url: str) -> bool:
    if url.startswith("unix:"):
        return True
    try:
        return loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
