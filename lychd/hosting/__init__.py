"""What the Vessel's host is made of. Beside `lychd.vessel`, the only place that knows Daphne and Twisted."""
