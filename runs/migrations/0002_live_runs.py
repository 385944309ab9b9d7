"""Live Runs of the tables before must be such as this version can carry on (ADM-50)."""

from django.db import migrations

from runs.migrations import _live_runs


class Migration(migrations.Migration):
    atomic = True
    dependencies = [("runs", "0001_initial")]
    operations = [migrations.RunPython(_live_runs.forwards, _live_runs.backwards)]
