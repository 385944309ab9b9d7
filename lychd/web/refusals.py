"""What only the door of HTTP refuses: methods, sizes and kinds of bodies. A branch of the error tree, nothing more."""

from __future__ import annotations

from runs.errors import Refused


class MethodNotAllowed(Refused):
    """This address does not answer this method."""

    code, title, status = "method_not_allowed", "Method not allowed", 405


class BodyTooLarge(Refused):
    """The request body is larger than the limit."""

    code, title, status = "body_too_large", "Body too large", 413


class UnsupportedMediaType(Refused):
    """The request body must be JSON in UTF-8, sent as application/json."""

    code, title, status = "unsupported_media_type", "Unsupported media type", 415
