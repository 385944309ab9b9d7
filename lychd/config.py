"""What the environment says, typed and checked once. Knows no Django and opens nothing.

Every bad value is one sentence that names the variable. Secrets may also come from a file: `NAME_FILE`
holds a path whose content is the value, as container platforms do it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from runs.errors import Refused


class BadSetting(Refused):
    """A setting is not valid."""

    code, title = "bad_setting", "Bad setting"


MEBIBYTE = 1024 * 1024

Words = Annotated[tuple[str, ...], NoDecode]


def _env(name: str) -> Any:
    return AliasChoices(name)


class Config(BaseSettings):
    """All settings of the product; field descriptions are the reference documentation."""

    model_config = SettingsConfigDict(case_sensitive=True, extra="ignore", populate_by_name=True, frozen=True)

    database_url: str | None = Field(
        None,
        validation_alias=_env("DATABASE_URL"),
        description="PostgreSQL to use; without it an embedded one is started under the data folder",
    )
    data: Path = Field(
        Path("var"), validation_alias=_env("LYCHD_DATA"), description="folder of everything the product keeps on disk"
    )
    profile: Literal["durable", "memory"] = Field(
        "durable",
        validation_alias=_env("LYCHD_PROFILE"),
        description="durable, or memory: a throw-away database and best-effort start",
    )
    secret_key: str | None = Field(
        None,
        validation_alias=_env("LYCHD_SECRET_KEY"),
        description="signing key; generated and kept under the data folder when absent and the bind is loopback",
    )
    allowed_hosts: Words = Field(
        ("localhost", "127.0.0.1", "[::1]"),
        validation_alias=_env("LYCHD_ALLOWED_HOSTS"),
        description="host names that may be asked for, comma-separated",
    )
    csrf_origins: Words = Field(
        (),
        validation_alias=_env("LYCHD_CSRF_ORIGINS"),
        description="trusted origins for unsafe browser requests, comma-separated, with scheme",
    )
    secure: bool = Field(
        False,
        validation_alias=_env("LYCHD_SECURE"),
        description="the site is served over HTTPS: secure cookies, HSTS, redirect",
    )
    proxy_headers: bool = Field(
        False, validation_alias=_env("LYCHD_PROXY_HEADERS"), description="trust X-Forwarded-Proto of the proxy in front"
    )
    debug: bool = Field(
        False, validation_alias=_env("LYCHD_DEBUG"), description="Django's debug pages; never in production"
    )
    runs_concurrency: int = Field(
        4,
        ge=1,
        le=1024,
        validation_alias=_env("LYCHD_RUNS_CONCURRENCY"),
        description="hops at a time on the lane `runs`",
    )
    rites_concurrency: int = Field(
        2,
        ge=1,
        le=1024,
        validation_alias=_env("LYCHD_RITES_CONCURRENCY"),
        description="hops at a time on the lane `rites`",
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        le=3600,
        validation_alias=_env("LYCHD_DRAIN_SECONDS"),
        description="how long running hops may go on after a stop was asked for",
    )
    log_format: Literal["console", "json"] = Field(
        "console", validation_alias=_env("LYCHD_LOG_FORMAT"), description="console or json"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", validation_alias=_env("LYCHD_LOG_LEVEL"), description="least severe level that is logged"
    )
    apps: Words = Field(
        (), validation_alias=_env("LYCHD_APPS"), description="Django apps to add, comma-separated: your Patterns"
    )
    roots: Annotated[tuple[Path, ...] | None, NoDecode] = Field(
        None,
        validation_alias=_env("LYCHD_ROOTS"),
        description="folders that file Patterns may read, separated as in PATH; default: the folder the Vessel was started in",
    )
    routes: Annotated[tuple[dict[str, Any], ...], NoDecode] = Field(
        (),
        validation_alias=_env("LYCHD_ROUTES"),
        description='routing rules as JSON: [{"source": "cli", "pattern": "inventory", "queue": "runs", "priority": 60}]',
    )
    policies: Annotated[tuple[Path, ...], NoDecode] = Field(
        (),
        validation_alias=_env("LYCHD_POLICIES"),
        description="TOML files with standing policies, separated as in PATH",
    )
    max_payload: int = Field(
        MEBIBYTE,
        ge=1024,
        le=64 * MEBIBYTE,
        validation_alias=_env("LYCHD_MAX_PAYLOAD"),
        description="bytes of input, state, output, step result and event, each as JSON",
    )
    max_body: int = Field(
        2 * MEBIBYTE,
        ge=1024,
        le=128 * MEBIBYTE,
        validation_alias=_env("LYCHD_MAX_BODY"),
        description="bytes of a request body",
    )
    max_queued: int = Field(
        100_000,
        ge=1,
        validation_alias=_env("LYCHD_MAX_QUEUED"),
        description="Runs that may be queued at once before submissions answer 429",
    )
    max_live_per_tenant: int = Field(
        100_000,
        ge=1,
        validation_alias=_env("LYCHD_MAX_LIVE_PER_TENANT"),
        description="Runs of one tenant that may be unfinished at once before submissions answer 429",
    )
    django_pool: int = Field(
        8, ge=2, le=64, validation_alias=_env("LYCHD_DJANGO_POOL"), description="most connections of Django's pool"
    )
    channel_layer_url: str | None = Field(
        None, validation_alias=_env("CHANNEL_LAYER_URL"), description="channel layer for more than one process"
    )

    @field_validator("allowed_hosts", "csrf_origins", "apps", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value

    @field_validator("roots", "policies", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return tuple(Path(part) for part in value.split(os.pathsep) if part) if isinstance(value, str) else value

    @field_validator("routes", mode="before")
    @classmethod
    def _json(cls, value: Any) -> Any:
        return tuple(json.loads(value)) if isinstance(value, str) and value.strip() else value or ()

    @field_validator("database_url", "secret_key", "channel_layer_url", mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        return value or None


def _with_secret_files(environ: dict[str, str]) -> dict[str, str]:
    found = {}
    for name in ("LYCHD_SECRET_KEY", "DATABASE_URL"):
        path = environ.get(f"{name}_FILE")
        if path and not environ.get(name):
            try:
                found[name] = Path(path).read_text().strip()
            except OSError as error:
                raise BadSetting(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return found


def load(environ: dict[str, str] | None = None, **overrides: Any) -> Config:
    """Read the settings from the environment.

    Args:
        environ: only for what `NAME_FILE` variables point at; the settings themselves read `os.environ`.
        overrides: values by field name that win over the environment (command-line options).

    Raises:
        BadSetting: one sentence per bad variable.
    """
    values = {**_with_secret_files(dict(os.environ if environ is None else environ))}
    try:
        found: dict[str, Any] = {**{_field(name): value for name, value in values.items()}, **overrides}
        return Config(**found)
    except ValidationError as error:
        lines = [f"{_variable(problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        raise BadSetting("; ".join(lines)) from error
    except ValueError as error:
        raise BadSetting(str(error)) from error


def _field(variable: str) -> str:
    return {"LYCHD_SECRET_KEY": "secret_key", "DATABASE_URL": "database_url"}[variable]


def _variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "settings"
    field = Config.model_fields.get(name)
    alias = field.validation_alias if field else None
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else name
