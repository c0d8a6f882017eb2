"""How `semistream bench peers` runs: each contestant in its own process, in turns, under one memory limit."""
