"""Commands of the laboratory. ``semistream`` finds them as entry points of the group ``semistream.commands``."""
