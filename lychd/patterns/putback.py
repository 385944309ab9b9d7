"""Puts the files of a quarantine back under their own names; what stands there meanwhile is never overwritten."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from lychd.patterns.contents import Identity, folder_of, holds, opened_file, seen
from lychd.patterns.halfway import CHANGED_THERE, Left, Place, aside, whereabouts
from lychd.patterns.pace import Pace
from lychd.patterns.placing import copy, made_folders, place, removed
from lychd.patterns.plan import Item, Plan, Totals
from lychd.patterns.quarantine import Account, Journal, Quarantine
from lychd.patterns.tree import is_fatal

TAKEN = "something has its name now; it stays in the quarantine"
_BATCH = 64
_FOLDER_MODE = 0o777


@dataclass(slots=True)
class PutBack:
    """One work on one quarantine; for one thread. Goes on where an interrupted work stopped."""

    plan: Plan
    totals: Totals
    quarantine: Quarantine
    root_fd: int
    journal: Journal
    pace: Pace

    def run(self) -> Account:
        """Put everything back that may be put back.

        Raises:
            Stopped: the Run was asked to stop; what is back is back and in the journal.
            OSError: the machine ran out of something.
        """
        try:
            for portion in self.plan.portions():
                for item in portion.items:
                    if item.number > self.journal.account.done:
                        self._one(item)
        finally:
            self.journal.sync()
        self.quarantine.sweep()
        return self.journal.account

    def _one(self, item: Item) -> None:
        self.pace.check()
        try:
            back = self._back(item)
        except Left as why:
            self.journal.left(item.number, item.path, str(why))
        except OSError as error:
            if is_fatal(error):
                raise
            self.journal.left(item.number, item.path, error.strerror or type(error).__name__)
        else:
            if back:
                self.journal.moved(item.number, item.was.size)
            else:
                self.journal.passed(item.number)
        if item.number % _BATCH == 0:
            self.journal.sync()
        account = self.journal.account
        self.pace.tell(item.number, self.totals.files, f"{account.moved:,} files, {account.bytes:,} bytes put back")

    def _back(self, item: Item) -> bool:
        found = whereabouts(self.quarantine, self.root_fd, item, self.pace, changed_returns=False)
        if found is Place.HOME:
            return False
        with folder_of(self.quarantine.files, item.path) as (kept_fd, name):
            if found is Place.AWAY:
                folder_fd = made_folders(self.root_fd, item.path, _FOLDER_MODE)
                try:
                    self._place(item, kept_fd, folder_fd, name)
                    os.fsync(folder_fd)
                finally:
                    os.close(folder_fd)
            removed(kept_fd, name)
            os.fsync(kept_fd)
        return True

    def _place(self, item: Item, kept_fd: int, folder_fd: int, name: bytes) -> None:
        part = aside(self.quarantine, item) + b".part"
        removed(folder_fd, part)
        here = seen(folder_fd, name)
        if here is not None:
            if self.journal.account.placing == (item.number, Identity.of(here)):
                return
            raise Left(TAKEN)
        with opened_file(kept_fd, name) as (file, _):
            if not holds(file, item.was.size, item.sha256, self.pace):
                raise Left(CHANGED_THERE)
            try:
                place(kept_fd, name, folder_fd, name)
            except FileExistsError as error:
                raise Left(TAKEN) from error
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(item, file, folder_fd, name, part)

    def _copy(self, item: Item, file: int, folder_fd: int, name: bytes, part: bytes) -> None:
        made = copy(file, item.sha256, folder_fd, part, self.pace)
        try:
            # So that a resumed work knows its own copy from a file that somebody put there.
            self.journal.placing(item.number, Identity.of(made))
            place(folder_fd, part, folder_fd, name)
        except FileExistsError as error:
            raise Left(TAKEN) from error
        finally:
            removed(folder_fd, part)
