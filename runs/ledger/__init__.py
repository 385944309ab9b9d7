"""Every write of Run truth. Read `outcomes`, `edge`, `runner`, then the edges in the order a Run meets them:
admit, release, publication, claim, checkpoint, journal, hardware, settle, rotate.
"""
