"""Consents: a Run asks, an operator answers, the Run goes on. Authors import `AwaitConsent` from `consents.outcome`."""
