"""Where to listen: the one reading of `--bind`. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass

from lychd.config import BadSetting

_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Bind:
    """An address to listen on: a TCP host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str | None = None

    @property
    def v6(self) -> bool:
        """Whether the host is an IPv6 address."""
        return ":" in self.host

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.path is not None or self.host in {"localhost", "::1"} or self.host.startswith("127.")

    def url(self, port: int | None = None) -> str:
        """The URL a client on this machine uses.

        Args:
            port: the port that was really taken, where 0 was asked for.
        """
        if self.path is not None:
            return f"unix:{self.path}"
        host = _ANYWHERE.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port if port is None else port}"


def parse(text: str) -> Bind:
    """Read `host:port`, `[v6]:port`, `:port` or `unix:/path`; port 0 lets the system choose.

    Raises:
        BadSetting: the text is none of these.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Bind(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if colon and port.isascii() and port.isdigit() and int(port) < 65536 and (bracketed or ":" not in host):
        return Bind(host=host.strip("[]"), port=int(port))
    raise BadSetting(f"cannot listen on {text!r}: use HOST:PORT, for instance 127.0.0.1:8000, or unix:/path")
