"""Terminal Steps that could not be written when their Run ended are written while the Vessel lives (EVT-12).

Startup looks over all terminal Runs; this relay takes up those whose evidence failed in this boot. It never decides a
status, and what contradicts a status is told and left as it is.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import psycopg
import structlog

from runs.aftermath import Aftermath
from runs.errors import EvidenceMismatch, LychdError, first_line
from runs.events.bus import Repaired
from runs.events.evidence import EvidenceWriter
from runs.recovery.custody import Patience

log = structlog.get_logger(__name__)

PAGE = 32


@dataclass(slots=True)
class EvidenceRelay:
    """Repairs the ends of Runs whose evidence is latched as failed."""

    aftermath: Aftermath
    evidence: EvidenceWriter
    interval: float = 5.0
    patience: Patience = field(default_factory=Patience)
    repaired: int = 0
    errors: int = 0
    name: str = "evidence"

    async def tick(self) -> bool:
        """One page of Runs with a latched failure. Never has more to do at once."""
        unwritten = self.evidence.unwritten
        self.patience.keep_only(set(unwritten))
        for run_id in [one for one in unwritten if self.patience.is_due(one)][:PAGE]:
            await self._repair(run_id)
        return False

    async def _repair(self, run_id: uuid.UUID) -> None:
        try:
            done = await self.aftermath.repair(run_id)
        except EvidenceMismatch as error:
            self.errors += 1
            # Nothing that is tried again would change it: the next start refuses, and a person has to look.
            log.error("evidence.contradicts", run=str(run_id), error=error.detail)
            self.evidence.retry(run_id)
        except (LychdError, psycopg.Error, OSError, TimeoutError) as error:
            self.errors += 1
            self.patience.failed(run_id)
            log.warning("evidence.not_repaired", run=str(run_id), error=first_line(error))
        else:
            if done is Repaired.NOT_TERMINAL:
                # Its end will be judged when it comes.
                self.patience.failed(run_id)
                return
            self.repaired += done is Repaired.WRITTEN
            self.evidence.retry(run_id)
