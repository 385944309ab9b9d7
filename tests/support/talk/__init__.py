"""An app whose Patterns talk, for tests that follow Runs of a real Vessel; named in LYCHD_APPS."""
