"""The Patterns that come with the product; found like those of any other installed app."""

from __future__ import annotations

from lychd.patterns.folder_inventory import inventory
from lychd.patterns.reclaim import reclaim

__all__ = ["inventory", "reclaim"]
