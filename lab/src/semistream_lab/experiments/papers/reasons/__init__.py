"""Reasons why published figures are not met, from counters and from the papers' own models."""
