"""How often and how patiently a step is tried again. Decides; never sleeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from runs.backoff import delays
from runs.errors import PatternError

_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts of one step inside a node (BYD-4).

    Args:
        attempts: how often at most, the first time included; 1 means no retry.
        first_delay: seconds before the second attempt.
        factor: each delay is this many times the last.
        max_delay: seconds that no delay exceeds.
        on: the errors after which another attempt makes sense; a cancellation is never one.

    Raises:
        PatternError: a value makes no sense.
    """

    attempts: int = 1
    first_delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    on: Sequence[type[Exception]] = (Exception,)

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise PatternError(f"A retry policy counts its attempts in whole numbers, not {self.attempts!r}.")
        if not 1 <= self.attempts <= _MOST_ATTEMPTS:
            raise PatternError(f"A retry policy allows 1 to {_MOST_ATTEMPTS} attempts, not {self.attempts}.")
        for name, value, least in (
            ("first_delay", self.first_delay, 0.0),
            ("factor", self.factor, 1.0),
            ("max_delay", self.max_delay, 0.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise PatternError(f"A retry policy's {name} must be a number, not {value!r}.")
            if value < least:
                raise PatternError(f"A retry policy's {name} must be at least {least:g}, not {value:g}.")
        kinds = tuple(self.on)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise PatternError(f"A retry policy retries on subclasses of Exception, not on {kind!r}.")
        object.__setattr__(self, "on", kinds)

    def delay_before(self, attempt: int) -> float:
        """Seconds to wait before this attempt; the first attempt is number 1 and waits for nothing."""
        if attempt <= 1:
            return 0.0
        return next(islice(delays(self.first_delay, self.factor, self.max_delay), attempt - 2, None))

    def allows(self, attempt: int, error: BaseException) -> bool:
        """Whether another attempt follows after `error` ended attempt number `attempt`."""
        return attempt < self.attempts and isinstance(error, tuple(self.on))


NO_RETRY = RetryPolicy()
