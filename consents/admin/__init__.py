"""The admin's pages of Consents: an inbox, a page to decide on, decisions for many, and the standing policies."""

from consents.admin.consent import ConsentAdmin
from consents.admin.policy import StandingPolicyAdmin

__all__ = ["ConsentAdmin", "StandingPolicyAdmin"]
