"""What a node is given. Authors type against this; the driver implements it, and tests of a Pattern may as well."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, overload

from pydantic import BaseModel

from runs.patterns.retry import NO_RETRY, RetryPolicy
from runs.patterns.verdict import Verdict

type Level = Literal["debug", "info", "warning", "error"]
# A span of time; a bare number means seconds.
type Span = timedelta | float


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which Run this is and where it stands.

    `hop` is the generation of the delivery, `visit` counts the activations of nodes over the Run's life, so that a
    loop's second visit of a node is told from its first (ruling 26).
    """

    id: uuid.UUID
    tenant: str
    session: uuid.UUID | None
    sigil: str
    scopes: frozenset[str]
    source: str
    hop: int
    node: str
    visit: int
    pattern: str
    revision: str


class Context[I: BaseModel, S: BaseModel](ABC):
    """The Run as its current node sees it: what went in, what is kept, and the ways to act and to be heard.

    The messages (`log`, `progress`, `token`, `fragment`) may be sent from any thread and never block or raise.
    """

    @property
    @abstractmethod
    def input(self) -> I:
        """What the Run was submitted with; the same in every node."""

    @property
    @abstractmethod
    def state(self) -> S:
        """What the Pattern keeps between nodes; change its fields or assign a new one."""

    @state.setter
    @abstractmethod
    def state(self, value: S) -> None: ...

    @property
    @abstractmethod
    def run(self) -> RunInfo:
        """Which Run this is and where it stands."""

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """What the owner answered on which the Run waited just before this node (WAIT-9).

        Raises:
            NoVerdict: this node was not entered from a wait.
        """

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the Run is asked to stop; long work in a thread looks here now and then (ruling 17)."""

    @abstractmethod
    def log(self, message: str, *, level: Level = "info", **fields: Any) -> None:
        """Say something to whoever follows the Run; kept as evidence."""

    @abstractmethod
    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the work is; kept as evidence."""

    @abstractmethod
    def token(self, text: str) -> None:
        """Send a piece of flowing text to live readers; never stored."""

    @abstractmethod
    def fragment(self, name: str, data: Any) -> None:
        """Publish a named partial result (JSON); kept as evidence."""

    @overload
    async def step[*Ts, R](
        self,
        name: str,
        fn: Callable[[*Ts], Awaitable[R]],
        /,
        *args: *Ts,
        retry: RetryPolicy = ...,
        timeout: Span | None = ...,
        returns: type[R] | None = ...,
    ) -> R: ...

    @overload
    async def step[*Ts, R](
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        retry: RetryPolicy = ...,
        timeout: Span | None = ...,
        returns: type[R] | None = ...,
    ) -> R: ...

    @abstractmethod
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: RetryPolicy = NO_RETRY,
        timeout: Span | None = None,
        returns: type[Any] | None = None,
    ) -> Any:
        """Do something once and remember its result under (visit, name, occurrence) (BYD-4).

        When the node runs again, the recorded result is returned and `fn` is not called. A sync function runs in a
        worker thread. On cancellation nothing is recorded unless `fn` had finished.

        Args:
            name: of the step; the same name may occur several times in a node.
            fn: async or sync.
            args: for `fn`; part of the step's identity, so they must be JSON or models.
            retry: which errors are tried again, how often, how patiently.
            timeout: of one attempt; a bare number means seconds.
            returns: the type that the recorded result is validated as; default: the return annotation of `fn`.

        Returns:
            the result of `fn`, as its recorded form reads.

        Raises:
            Conflict: this step was recorded with other arguments.
            Invalid: the result cannot be stored.
        """

    @abstractmethod
    async def run_sync[*Ts, R](self, fn: Callable[[*Ts], R], /, *args: *Ts) -> R:
        """Run blocking code in a worker thread; nothing is recorded.

        On cancellation `cancelled` becomes true and the thread is waited for before the cancellation goes on:
        a thread cannot be stopped from outside (ruling 17).
        """

    @abstractmethod
    def effect_key(self, name: str, occurrence: int | None = None) -> uuid.UUID:
        """The idempotency key of a step's effect outside, the same after every replay (ruling 26).

        Args:
            name: of the step.
            occurrence: which step of that name in this activation, from 0; default: the next one to come.
        """
