"""Recovery: what earlier boots left open, or hops of this one that nobody carries, is brought to a true end."""
