"""`inventory` of a hundred thousand files, in a process of its own so that its memory can be measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support.inventory import Place

pytest_plugins = ["tests.support.inventory_fixtures"]

WIDE = 70_000
DEEP, IN_EACH = 300, 100
MOST_GROWTH_MIB = 64

CHILD = """
import json
import os
import resource
from pathlib import Path

import django

django.setup()

from lychd.patterns import folder_inventory
from lychd.patterns.pace import Pace
from lychd.patterns.report import InventoryInput


class Ear:
    cancelled = False

    def progress(self, *said):
        pass


def inventory(root):
    listing = Path(os.environ["LYCHD_DATA"]) / "listing.sqlite"
    asked = InventoryInput(root=root)
    found = folder_inventory._survey(asked, listing, Pace(Ear()))
    return folder_inventory._compare(asked, found, listing, Pace(Ear()))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


inventory("deep/f/f/f")
before = peak()
found, compared = inventory(".")
print(json.dumps([found.files, found.folders, found.empty, compared.duplicates.extra_files, peak() - before]))
"""


def make_files(folder: int, count: int) -> None:
    """Files in an open folder; every tenth holds two bytes, the rest nothing."""
    for number in range(count):
        file = os.open(f"{number:06}.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        if number % 10 == 0:
            os.write(file, b"%02d" % (number // 10 % 10))
        os.close(file)


def test_a_hundred_thousand_files_wide_and_deep_need_bounded_memory(place: Place) -> None:
    for name in ("wide", "deep"):
        (place.root / name).mkdir()
    folder = os.open(place.root / "wide", os.O_RDONLY)
    make_files(folder, WIDE)
    os.close(folder)
    folder = os.open(place.root / "deep", os.O_RDONLY)
    for _ in range(DEEP):
        make_files(folder, IN_EACH)
        os.mkdir("f", dir_fd=folder)
        below = os.open("f", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "lychd.settings",
        "LYCHD_ROOTS": str(place.root),
        "LYCHD_DATA": str(place.data),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    files, folders, empty, copies, growth = json.loads(done.stdout)
    all_files = WIDE + DEEP * IN_EACH
    assert (files, folders, empty) == (all_files, 3 + DEEP, all_files * 9 // 10)
    assert copies == all_files // 10 - 10, "ten contents, each but its first file a copy"
    assert growth < MOST_GROWTH_MIB, f"{growth:.0f} MiB more than for a few files"
