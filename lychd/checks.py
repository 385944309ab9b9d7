"""System checks of the composition: routes, limits, connections, and what a production site must have set."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from lychd.config import BadSetting, Config
from runs.patterns import discover

# Of a PostgreSQL as it comes, with room for backups, migrations and people beside the Vessel.
USUAL_CONNECTIONS = 60


def _config() -> Config:
    return settings.CONFIG


def check_routes(**_kwargs: Any) -> list[CheckMessage]:
    """`lychd.E101` a rule is none or names a queue that does not exist; `lychd.W101` one speaks of no known Pattern."""
    from lychd import wiring

    try:
        wiring.router(_config())
    except BadSetting as error:
        return [
            Error(
                error.detail,
                hint='An example: LYCHD_ROUTES=[{"source": "cli", "queue": "runs", "priority": 60}]',
                id="lychd.E101",
            )
        ]
    try:
        known = {pattern.key for pattern in discover()}
    except Exception:  # noqa: BLE001 another check says what is wrong with the Patterns
        return []
    named = [str(rule["pattern"]) for rule in _config().routes if rule.get("pattern")]
    return [
        Caution(
            f"LYCHD_ROUTES: a rule speaks of Pattern {pattern!r}, which no installed app declares.",
            hint="Correct the name, or add the app to LYCHD_APPS.",
            id="lychd.W101",
        )
        for pattern in dict.fromkeys(named)
        if pattern not in known
    ]


def check_limits(**_kwargs: Any) -> list[CheckMessage]:
    """Figures that are each allowed but do not fit together.

    `lychd.E111` no request body can hold the largest input; `lychd.W111` more connections than a PostgreSQL as it
    comes allows beside other users; `lychd.W112` roots that do not exist.
    """
    from lychd import wiring

    config = _config()
    messages: list[CheckMessage] = []
    if config.max_body <= config.max_payload:
        messages.append(
            Error(
                f"LYCHD_MAX_BODY ({config.max_body:,} bytes) does not exceed LYCHD_MAX_PAYLOAD "
                f"({config.max_payload:,} bytes), so the largest input cannot be sent.",
                hint="A request is its input and a little more; twice the payload is the default.",
                id="lychd.E111",
            )
        )
    budget = wiring.budget(config)
    if budget.total > USUAL_CONNECTIONS:
        parts = ", ".join(f"{share.name} {share.most}" for share in budget.shares)
        messages.append(
            Caution(
                f"The Vessel may open {budget.total} database connections ({parts}).",
                hint="Lower LYCHD_DJANGO_POOL, or raise max_connections of PostgreSQL and silence this.",
                id="lychd.W111",
            )
        )
    messages += [
        Caution(f"LYCHD_ROOTS: {root} is no folder.", hint="Patterns cannot read below it.", id="lychd.W112")
        for root in config.roots or ()
        if not root.is_dir()
    ]
    return messages


def check_production(**_kwargs: Any) -> list[CheckMessage]:
    """For `check --deploy`: what the documented production environment sets.

    `lychd.W121` no HTTPS; `lychd.W122` no key of its own; `lychd.W123` only this machine's names; `lychd.W124`
    debug pages; `lychd.W125` origins that browsers never send.
    """
    config = _config()
    local = set(config.allowed_hosts) <= {"localhost", "127.0.0.1", "[::1]"}
    bare = [origin for origin in config.csrf_origins if "://" not in origin]
    rules = (
        (
            not config.secure,
            "W121",
            "LYCHD_SECURE is not set: cookies and tokens may travel in the clear.",
            "Set it to 1.",
        ),
        (
            not config.secret_key,
            "W122",
            "LYCHD_SECRET_KEY is not set: a generated key is kept under the data folder.",
            "Set LYCHD_SECRET_KEY or LYCHD_SECRET_KEY_FILE.",
        ),
        (
            local,
            "W123",
            "LYCHD_ALLOWED_HOSTS names only this machine.",
            "Name the hosts under which browsers ask.",
        ),
        (config.debug, "W124", "LYCHD_DEBUG is set: errors show settings and source code.", "Unset it."),
        (
            bool(bare),
            "W125",
            f"LYCHD_CSRF_ORIGINS: {', '.join(bare)} has no scheme.",
            "Write https://host.",
        ),
    )
    return [Caution(sentence, hint=hint, id=f"lychd.{number}") for wrong, number, sentence, hint in rules if wrong]
