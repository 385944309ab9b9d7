"""The dashboard at `/`: pages on which people watch Runs, decide Consents and see how the Vessel stands.

Django views over Django's connection, bounded queries, templates as the only source of markup. Every page says what is
so at the time of the request; with JavaScript it then stays live over the WebSockets.
"""
