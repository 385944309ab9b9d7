"""Chooses the PostgreSQL of the tests before Django reads its settings; loaded with `-p`."""
