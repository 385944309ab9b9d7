"""What must be settled before Django reads its settings: data folder, profile, secret key, and which database.

A command line is looked at twice: here for the options that the settings depend on, later by the command itself.
Starts the embedded server where a command needs a database and none was named; opens nothing else.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from lychd import config as configuration
from lychd import logs
from lychd.config import BadSetting, Config
from lychd.hosting import bind as binding
from lychd.postgres import launcher, urls
from runs.errors import Degraded

# Commands that work on the database; all others either need none or speak to a running Vessel.
DATABASE_COMMANDS = frozenset(
    {
        "up",
        "vessel",
        "migrate",
        "sigil",
        "doctor",
        "quarantine",
        "createsuperuser",
        "changepassword",
        "shell",
        "dbshell",
        "showmigrations",
    }
)
HOSTS = frozenset({"up", "vessel"})
# Says itself, among other things, that the database does not answer.
DOCTOR = "doctor"
DEFAULT_BIND = "127.0.0.1:8000"


class DataFolderUnusable(Degraded):
    """The data folder cannot be used."""

    code, title = "data_folder", "Data folder not usable"


def option(argv: list[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE` in a command line, the last one given."""
    found = None
    for index, word in enumerate(argv):
        if word == name and index + 1 < len(argv):
            found = argv[index + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


@contextmanager
def prepared(argv: list[str]) -> Generator[Config]:
    """Set the environment for the command in `argv`, with a running database if it needs one.

    A database that was started here is stopped afterwards, unless somebody else uses it.

    Raises:
        BadSetting: a variable or option is not valid.
        DatabaseUnavailable, DataFolderUnusable: one sentence why not.
    """
    command = argv[0] if argv else ""
    for name, variable in (("--data", "LYCHD_DATA"), ("--profile", "LYCHD_PROFILE")):
        value = option(argv, name)
        if value is not None:
            os.environ[variable] = value
    if command not in HOSTS:
        # A command's own words are what its caller wants to see.
        os.environ.setdefault("LYCHD_LOG_LEVEL", "warning")
    config = configuration.load()
    logs.configure(config.log_format, config.log_level)
    if {"-h", "--help"} & set(argv):
        yield config
        return
    if command in HOSTS:
        bind = option(argv, "--bind") or DEFAULT_BIND
        loopback = binding.parse(bind).loopback
        _folder(config.data)
        _secret_key(config, bind, loopback=loopback)
    if command not in DATABASE_COMMANDS or config.database_url:
        if command in DATABASE_COMMANDS - {DOCTOR} and config.database_url:
            # Django's pool would try for ten seconds, with a warning each time, and then not say why.
            urls.prove_answer(config.database_url)
        yield config
        return
    memory = config.profile == "memory" and command in HOSTS
    cluster = launcher.ensure(None if memory else config.data, throwaway=memory)
    os.environ["DATABASE_URL"] = cluster.url
    try:
        yield configuration.load()
    finally:
        _close_django()
        cluster.stop()


def _folder(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
        probe = data / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DataFolderUnusable(f"The data folder {data} cannot be written: {error.strerror}.") from error


def _secret_key(config: Config, bind: str, *, loopback: bool) -> None:
    """Make and keep a key on first use; only where nobody but this machine can reach the Vessel."""
    if config.secret_key:
        return
    if not loopback:
        raise BadSetting(f"LYCHD_SECRET_KEY: it must be set when the Vessel listens on {bind}, beyond this machine")
    kept = config.data / "secret.key"
    try:
        if kept.exists():
            if stat.S_IMODE(kept.stat().st_mode) & 0o077:
                kept.chmod(0o600)
            return
        draft = kept.with_name(f".{kept.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
        # In place whole or not at all: half a key would keep every later start from working.
        draft.replace(kept)
    except OSError as error:
        raise DataFolderUnusable(f"The key in {kept} cannot be kept: {error.strerror}.") from error


def _close_django() -> None:
    """Let go of Django's connections, so that the last user of the embedded server can be seen to be the last."""
    import sys

    if "django.db" not in sys.modules:
        return
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections

    try:
        for connection in connections.all(initialized_only=True):
            connection.close()
            pool_closer = getattr(connection, "close_pool", None)
            if pool_closer is not None:
                pool_closer()
    except ImproperlyConfigured:
        return
