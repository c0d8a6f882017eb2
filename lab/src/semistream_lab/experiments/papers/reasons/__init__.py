"""Why published figures are not met, from what was counted and from the papers' own models."""
