"""Django settings, built from `lychd.config`; the only place where both meet. Does no I/O but reading the key file."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.csp import CSP  # pyright: ignore[reportMissingImports, reportUnknownVariableType] - newer than the stubs

from lychd import config as _config
from lychd.logs import configure as _configure_logs
from lychd.postgres import urls as _urls

BASE_DIR = Path(__file__).resolve().parent.parent

try:
    CONFIG = _config.load()
except _config.BadSetting as _error:
    raise ImproperlyConfigured(str(_error)) from _error

DATA = CONFIG.data.resolve()
LOGGING_CONFIG = None
_configure_logs(CONFIG.log_format, CONFIG.log_level)


def _secret_key() -> str:
    """The key from the environment, else the one kept under the data folder, else a fresh one for this process."""
    if CONFIG.secret_key:
        return CONFIG.secret_key
    kept = DATA / "secret.key"
    try:
        return kept.read_text().strip()
    except OSError:
        return secrets.token_urlsafe(48)


SECRET_KEY = _secret_key()
DEBUG = CONFIG.debug
ALLOWED_HOSTS = list(CONFIG.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(CONFIG.csrf_origins)

INSTALLED_APPS = [
    "lychd",
    "lychd.sigils",
    "consents",
    "delegation",
    "servicejobs",
    "runs",
    "lychd.admin_site.LychdAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "ninja",
    *CONFIG.apps,
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "lychd.web.urls"
ASGI_APPLICATION = "lychd.asgi.application"
AUTH_USER_MODEL = "sigils.User"
LOGIN_URL = "dashboard:login"
LOGIN_REDIRECT_URL = "dashboard:home"
LOGOUT_REDIRECT_URL = "dashboard:login"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.csp",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Without DATABASE_URL the embedded server is found or started by the command; nothing connects before that.
DATABASE_URL = CONFIG.database_url or _urls.embedded_url(DATA)
DATABASES = {"default": _urls.django_database(DATABASE_URL, pool=CONFIG.django_pool)}

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
    "django.contrib.auth.hashers.ScryptPasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = DATA / "static"
# Files are found in the apps and listed once at start: no collectstatic step for a first run.
WHITENOISE_USE_FINDERS = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF, CSP.NONCE],
    "style-src": [CSP.SELF, CSP.NONCE],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
    "base-uri": [CSP.NONE],
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CONFIG.secure
CSRF_COOKIE_SECURE = CONFIG.secure
SECURE_SSL_REDIRECT = CONFIG.secure
SECURE_HSTS_SECONDS = 31_536_000 if CONFIG.secure else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = CONFIG.secure
SECURE_HSTS_PRELOAD = CONFIG.secure
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
if CONFIG.proxy_headers:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

DATA_UPLOAD_MAX_MEMORY_SIZE = CONFIG.max_body
