"""What the embedded server is told: durability, size, and who may connect. Text and arguments only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lychd.postgres.urls import EMBEDDED_ROLE

# Written into postgresql.conf when the cluster is made; whoever runs the machine may change them there.
TUNABLE = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "1GB",
    "min_wal_size": "80MB",
    "checkpoint_timeout": "10min",
    "wal_compression": "on",
    "random_page_cost": "1.1",
    # The statements are short; compiling them costs more than it saves.
    "jit": "off",
    # A queue's tables are small and busy: dead rows must not pile up until a fifth of a big table has changed.
    "autovacuum_naptime": "15s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "log_min_messages": "warning",
    "log_min_duration_statement": "-1",
}

# On the command line of each start, above the file: the product's promises rest on them.
FIXED = {
    "listen_addresses": "",
    "port": "5432",  # names the socket's file
    "unix_socket_permissions": "0777",  # the folder around it is private, and peer authentication decides
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_line_prefix": "%m [%p] ",
    # Statements and their values may hold what must not lie in a log.
    "log_min_error_statement": "panic",
    "log_parameter_max_length_on_error": "0",
    "log_statement": "none",
    "lc_messages": "C",
    "timezone": "UTC",
}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def initdb_arguments(folder: Path, *, durable: bool) -> list[str]:
    """Arguments of `initdb` for a new cluster in `folder`: UTF-8, order by code point, checksums, no open door."""
    arguments = ["-D", str(folder), "-U", EMBEDDED_ROLE, "--locale=C.UTF-8", "-E", "UTF8", "-k"]
    arguments += ["--auth-local=peer", "--auth-host=reject"]
    for name, value in TUNABLE.items():
        arguments += ["-c", f"{name}={value}"]
    return arguments if durable else [*arguments, "-N"]


def server_arguments(
    data: Path, socket: Path, *, access: Path, durable: bool, port: int | None, options: Mapping[str, str]
) -> list[str]:
    """Arguments of `postgres`.

    Args:
        data: PostgreSQL's data folder.
        socket: the folder of its socket.
        access: the folder that holds pg_hba.conf and pg_ident.conf.
        durable: False gives up what a crash of the machine would lose anyway.
        port: also listen on this TCP port of the loopback interface.
        options: further settings by name; they win over all others.
    """
    settings = {
        **FIXED,
        **(DURABLE if durable else FORGETFUL),
        "unix_socket_directories": str(socket),
        "hba_file": str(access / "pg_hba.conf"),
        "ident_file": str(access / "pg_ident.conf"),
    }
    if port is not None:
        settings |= {"listen_addresses": "127.0.0.1", "port": str(port)}
    arguments = ["-D", str(data)]
    for name, value in (settings | dict(options)).items():
        arguments += ["-c", f"{name}={value}"]
    return arguments


def host_based_access() -> str:
    """pg_hba.conf: the socket asks the kernel who is there; TCP needs a password, and no role has one at first."""
    return "local all all peer map=own\nhost all all 127.0.0.1/32 scram-sha-256\nhost all all ::1/128 scram-sha-256\n"


def identities(clients: Sequence[str]) -> str:
    """pg_ident.conf: the system users that may be the database's role."""
    return "".join(f'own "{name}" {EMBEDDED_ROLE}\n' for name in clients)
