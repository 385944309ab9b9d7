"""What the commands that speak to a running Vessel share: finding it, showing things, saying what went wrong."""
