"""A Django app for the Vessel under fire (LYCHD_APPS): its Patterns, and the fuse that kills the process."""
