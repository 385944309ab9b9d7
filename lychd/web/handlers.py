"""The HTTP half of the ASGI application: which handler answers which path.

API, health and metrics get a short stack without thread hops; static files are read outside Django; everything
else gets Django's full stack. The short stack applies the same security headers, by asking the same middlewares
directly, and never touches sessions, messages or the ORM.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import (
    ASGIHandler,
    ASGIRequest,
    get_script_prefix,  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
)
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.csp import (  # pyright: ignore[reportMissingImports] - newer than the stubs
    ContentSecurityPolicyMiddleware,  # pyright: ignore[reportUnknownVariableType] - newer than the stubs
)
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.security import SecurityMiddleware
from django.urls import set_script_prefix, set_urlconf

from lychd.web import problems
from lychd.web.refusals import BodyTooLarge
from lychd.web.request_ids import Application, Receive, Scope, Send, with_request_id
from lychd.web.static import StaticFiles
from runs.errors import NotAdmitting, Refused

PROBES = ("/healthz", "/readyz", "/metrics")

type View = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class VesselRequest(ASGIRequest):
    """A request that knows the Vessel it came to."""

    @property
    def vessel(self) -> Any:
        """The object graph that the lifespan put into the ASGI state.

        Raises:
            NotAdmitting: there is none; the application is served without its lifespan.
        """
        vessel = self.scope.get("state", {}).get("vessel")
        if vessel is None:
            raise NotAdmitting("No Vessel is running behind this address.")
        return vessel


class SiteHandler(ASGIHandler):
    """Django's full stack, for pages."""

    request_class = VesselRequest


class ApiHandler(ASGIHandler):
    """The short stack. Sync views work here too; their connections are given back when the request ends.

    Django's signals `request_started` and `request_finished` are not sent: each would cost a thread hop a request.
    """

    request_class = VesselRequest

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002 Django's signature
        """Build the stack; `settings.MIDDLEWARE` is not asked."""
        self._view_middleware = []
        self._template_response_middleware = []
        self._exception_middleware = []
        self._middleware_chain = _secured(_told(self._get_response_async))  # pyright: ignore[reportAttributeAccessIssue]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; ends at once, cancelling the view, when the client leaves."""
        set_script_prefix(get_script_prefix(scope))
        try:
            body = await _body(receive, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        except RequestAborted:
            return
        except BodyTooLarge as error:
            await self.send_response(problems.problem(error), send)
            return
        with closing(body):
            try:
                request = self.request_class(scope, body)
            except UnicodeDecodeError:
                await self.send_response(problems.problem(Refused("The address is not well formed.")), send)
                return
            try:
                await self._serve(request, receive, send)
            finally:
                await _give_back_connections()

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        """The response; unlike Django's, refusals are not logged one by one."""
        set_urlconf(settings.ROOT_URLCONF)
        response: HttpResponseBase = await self._middleware_chain(request)
        return response

    async def _serve(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            response = await self.run_get_response(request)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
            try:
                await self.send_response(response, send)
            finally:
                _close(response)

        answering = asyncio.ensure_future(answer())
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
            await asyncio.wait({answering})
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        if not answering.cancelled():
            answering.result()


def http_application() -> Application:
    """The application for `http` scopes; needs Django to be set up."""
    api, site, static = ApiHandler(), SiteHandler(), StaticFiles()

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith("/api/") or path in PROBES:
            await api(scope, receive, send)
        elif not await static(scope, receive, send):
            await site(scope, receive, send)

    return with_request_id(route)


def _told(get_response: View) -> View:
    """Everything that goes wrong is told as problem details."""

    async def told(request: HttpRequest) -> HttpResponseBase:
        try:
            if request.path_info not in PROBES:
                request.get_host()
            response = await get_response(request)
        except Exception as error:  # noqa: BLE001 the outermost frame: told to the client, logged by respond
            return problems.respond(request, error)
        return problems.as_problem(request, response) if isinstance(response, HttpResponse) else response

    return told


def _secured(get_response: View) -> View:
    """The headers and the redirect to HTTPS of the full stack, by its own middlewares, without their thread hops."""
    security = SecurityMiddleware(_no_view)
    policy = ContentSecurityPolicyMiddleware(_no_view)
    frames = XFrameOptionsMiddleware(_no_view)
    csrf = CsrfViewMiddleware(_no_view)

    async def secured(request: HttpRequest) -> HttpResponseBase:
        response = security.process_request(request)
        if response is None:
            policy.process_request(request)
            csrf.process_request(request)
            response = await get_response(request)
        told: Any = response
        for middleware in (csrf, frames, policy, security):
            told = middleware.process_response(request, told)
        if not told.streaming:
            told["Content-Length"] = str(len(told.content))
        return told

    return secured


def _no_view(request: HttpRequest) -> HttpResponse:
    raise AssertionError(request.path)


async def _body(receive: Receive, limit: int) -> io.BytesIO:
    """The request body in memory; stops reading at the limit.

    Raises:
        BodyTooLarge: it is longer than `limit` bytes.
        RequestAborted: the client left.
    """
    body = io.BytesIO()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        body.write(message.get("body", b""))
        if body.tell() > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes.")
        if not message.get("more_body", False):
            body.seek(0)
            return body


def _close(response: HttpResponseBase) -> None:
    """What `response.close()` does but for its signal, whose receivers must not run on the loop."""
    closers: list[Callable[[], None]] = response._resource_closers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    for close in closers:
        close()
    response.closed = True


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _give_back_connections() -> None:
    """What `request_finished` does, but only where a sync view or the ORM has used this request's thread."""
    context: ThreadSensitiveContext | None = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None and context in SyncToAsync.context_to_thread_executor:
        await sync_to_async(close_old_connections)()
