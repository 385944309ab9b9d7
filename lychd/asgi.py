"""The ASGI application: http, websocket and lifespan. Served without its lifespan it answers 503."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "lychd.settings")

import django

django.setup()

from channels.routing import ProtocolTypeRouter
from django.conf import settings

from lychd.lifespan import Lifespan
from lychd.web.handlers import http_application
from lychd.web.routing import websocket_application

lifespan = Lifespan(settings.CONFIG, settings.DATABASE_URL)
application = ProtocolTypeRouter(
    {
        "http": http_application(),
        "websocket": websocket_application(),
        "lifespan": lifespan,
    }
)
