"""Checks that every join must pass. They run over the whole registry, so authors of new joins can use them too."""
