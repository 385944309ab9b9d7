"""Consents are paged by their last change; the one that a parked Run waits for cannot be deleted (ruling 24).

A file may lower a policy's `max_uses` below what was used, so that is no constraint.
"""

from __future__ import annotations

import django.db.models.functions.datetime
from django.db import migrations, models

KEEP = """
create function consents_keep_owner() returns trigger language plpgsql as $$
begin
    if exists (select 1 from runs_run r
               where r.id = old.run_id and r.wait_owner = old.id and r.status = 'awaiting_consent') then
        raise exception 'Run % waits for this Consent; it cannot be deleted.', old.run_id using errcode = '23503';
    end if;
    return old;
end
$$;
create trigger consents_keep_owner before delete on consents_consent
    for each row execute function consents_keep_owner();
"""
LET_GO = """
drop trigger consents_keep_owner on consents_consent;
drop function consents_keep_owner();
"""


class Migration(migrations.Migration):
    dependencies = [("consents", "0001_initial")]

    operations = [
        migrations.RemoveConstraint(model_name="standingpolicy", name="consents_policy_within_uses"),
        migrations.AddField(
            model_name="consent",
            name="updated_at",
            field=models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
        ),
        migrations.AddIndex(
            model_name="consent",
            index=models.Index(fields=["tenant", "updated_at", "id"], name="consents_changes"),
        ),
        migrations.RunSQL(KEEP, LET_GO),
    ]
