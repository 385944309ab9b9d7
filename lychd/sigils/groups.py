"""The groups that come with the product: Operators, Approvers, Auditors. Made after migrations, each thing once.

Permissions exist only after Django has made them, so this listens for the end of a migration. What was granted is
remembered, so that an administrator's changes stay: a permission that was taken away, or a group that was deleted,
does not come back, while a permission that a later version brings is still added.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.apps import AppConfig
from django.apps import apps as current_apps

STANDARD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Operators": (
            "runs.view_run",
            "runs.view_rundelivery",
            "runs.view_step",
            "runs.view_checkpoint",
            "runs.view_checkpointarchive",
            "runs.view_journalentry",
            "runs.view_session",
            "runs.view_sessionturn",
            "runs.view_vesselslot",
            "runs.view_runtombstone",
            "runs.submit_run",
            "runs.cancel_run",
            "runs.rerun_run",
            "runs.view_payload",
            "delegation.view_agentjob",
            "servicejobs.view_servicejobattempt",
        ),
        "Approvers": (
            "runs.view_run",
            "runs.view_step",
            "consents.view_consent",
            "consents.decide_consent",
        ),
        "Auditors": (
            "runs.view_run",
            "runs.view_rundelivery",
            "runs.view_step",
            "runs.view_checkpoint",
            "runs.view_checkpointarchive",
            "runs.view_journalentry",
            "runs.view_session",
            "runs.view_sessionturn",
            "runs.view_vesselslot",
            "runs.view_runtombstone",
            "runs.view_boot",
            "consents.view_consent",
            "delegation.view_agentjob",
            "servicejobs.view_servicejobattempt",
            "sigils.view_sigil",
        ),
    }
)


def make_standard_groups(
    sender: AppConfig,  # noqa: ARG001 a signal's receiver
    using: str = "default",
    apps: Any = current_apps,
    **_kwargs: Any,
) -> None:
    """Receiver of `post_migrate`: make what is missing and was never made before.

    Args:
        sender: the app whose migrations ended; only the last one is listened to.
        using: alias of the migrated database.
        apps: the models as they stand at the end of this migration, which may not be the newest.
    """
    try:
        group_model = apps.get_model("auth", "Group")
        permission_model = apps.get_model("auth", "Permission")
        grant_model = apps.get_model("sigils", "StandardGrant")
    except LookupError:
        return
    made = set(grant_model.objects.using(using).values_list("group", "permission"))
    existing = {
        f"{permission.content_type.app_label}.{permission.codename}": permission
        for permission in permission_model.objects.using(using).select_related("content_type")
    }
    for name, permissions in STANDARD.items():
        if (name, "") not in made:
            group_model.objects.using(using).get_or_create(name=name)
        group = group_model.objects.using(using).filter(name=name).first()
        new = [one for one in permissions if one in existing and (name, one) not in made]
        if group is not None and new:
            group.permissions.add(*(existing[one] for one in new))
        grant_model.objects.using(using).bulk_create(
            [grant_model(group=name, permission=one) for one in ("", *new) if (name, one) not in made],
            ignore_conflicts=True,
        )
