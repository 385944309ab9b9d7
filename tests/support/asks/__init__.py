"""An app whose Pattern asks before it moves files, for tests that decide in a browser; named in LYCHD_APPS."""
