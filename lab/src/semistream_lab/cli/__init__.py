"""Commands of the laboratory, which ``semistream`` finds as entry points of the group ``semistream.commands``."""
