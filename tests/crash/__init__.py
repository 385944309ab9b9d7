"""The crash sweep: a Vessel killed after each of its SQL statements, started again, and what must hold then."""
