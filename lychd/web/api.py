"""The API root under /api/v1: gathers the routers of the apps and gives all of them one law.

One law: authentication unless a route says otherwise, JSON in and out as `encoding` has it, every error as problem
details, OpenAPI and a docs page that is served from here alone. Holds no endpoint of its own.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.http import Http404, HttpRequest
from ninja import NinjaAPI, Router, Swagger
from ninja.errors import HttpError, ValidationError, ValidationErrorContext
from ninja.openapi.schema import OpenAPISchema

from lychd.web import problems
from lychd.web.auth import AUTH
from lychd.web.encoding import JsonParser, JsonRenderer
from runs.errors import LychdError

# Each app that has an `api` module shows its endpoints as `router` there.
API_MODULES = ("runs.api", "consents.api", "delegation.api", "servicejobs.api")


class LychdAPI(NinjaAPI):
    """NinjaAPI whose validation errors point into what the client sent; its document shows refusals as they are."""

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        """The document, with refusals under the media type that they are sent with."""
        schema = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        for operations in schema["paths"].values():
            for operation in operations.values():
                for status, told in operation["responses"].items():
                    content = told.get("content", {})
                    if int(status) >= 400 and "application/json" in content:
                        content[problems.MEDIA_TYPE] = content.pop("application/json")
        return schema

    def validation_error_from_error_contexts(
        self,
        error_contexts: list[ValidationErrorContext[Any]],
    ) -> ValidationError:
        """The errors of all parts of the request.

        A single body parameter is the body itself, so its name, which the client never sees, is left out of the path.
        """
        errors: list[dict[str, Any]] = []
        for context in error_contexts:
            model: Any = context.model
            whole = getattr(model, "__read_from_single_attr__", None)
            seen_as = getattr(model, "__ninja_flatten_map_reverse__", {})
            for error in context.pydantic_validation_error.errors(include_url=False, include_input=False):
                path: tuple[Any, ...] = seen_as.get(error["loc"], error["loc"])
                if whole is not None and path[:1] == (whole,):
                    path = path[1:]
                errors.append(
                    {"type": error["type"], "msg": error["msg"], "loc": (model.__ninja_param_source__, *path)}
                )
        return ValidationError(errors)


def build_api(*extra: tuple[str, Router], namespace: str = "api") -> NinjaAPI:
    """The API with the routers of all apps that have one.

    Args:
        extra: more routers with their prefixes; tests mount theirs here.
        namespace: of the URL names; only matters where two APIs live in one URL configuration.
    """
    api = LychdAPI(
        title="LychD",
        version="1",
        description="Submit Runs, follow them, and answer what they ask.",
        urls_namespace=namespace,
        docs=Swagger(settings={"persistAuthorization": False}),
        auth=AUTH,
        parser=JsonParser(),
        renderer=JsonRenderer(),
    )
    for kind in (LychdError, ValidationError, HttpError, Http404, Exception):
        api.add_exception_handler(kind, _respond)
    for module in API_MODULES:
        if find_spec(module) is not None:
            api.add_router("", import_module(module).router)
    for prefix, router in extra:
        api.add_router(prefix, router)
    return api


def _respond(request: HttpRequest, error: Any) -> Any:
    return problems.respond(request, error)
