"""Who may act: people, the tenants they belong to, and Sigils, the tokens that act in a person's name.

The effective right of a Sigil is its scopes cut with what its owner may do (ruling 29). A token is never stored,
only its SHA-256: it is 256 random bits, so no slow hash is needed.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Now

from runs import ids


class User(AbstractUser):  # pyright: ignore[reportUntypedBaseClass] - the stubs leave its bases open
    """A person. Custom from the first migration on, so that it can grow without a swap."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)

    class Meta(AbstractUser.Meta):  # pyright: ignore[reportAttributeAccessIssue, reportUntypedBaseClass] - not in stubs
        db_table = "sigils_user"


class Membership(models.Model):
    """That a person belongs to a tenant: without it, nothing of the tenant is visible to them."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.CharField(max_length=100)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "tenant"], name="sigils_membership_once"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}"


class Sigil(models.Model):
    """A caller's identity: a name, scopes and a tenant, presented as a bearer token."""

    id = models.UUIDField(primary_key=True, default=ids.mint, editable=False)
    tenant = models.CharField(max_length=100, default="default")
    name = models.CharField(max_length=100)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sigils")
    token_hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes: models.JSONField[list[str]] = models.JSONField(default=list)
    sources: models.JSONField[list[str]] = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True, blank=True)
    revoked_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True, blank=True)
    last_used_at: models.DateTimeField[datetime | None] = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["tenant", "name"], name="sigils_sigil_name_once"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.tenant})"


class StandardGrant(models.Model):
    """That a standard group got a permission once: what an administrator took away is never given again."""

    group = models.CharField(max_length=150)
    permission = models.CharField(max_length=200, help_text="app_label.codename; empty for the group itself")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["group", "permission"], name="sigils_standardgrant_once"),
        ]

    def __str__(self) -> str:
        return f"{self.group}: {self.permission or 'made'}"
