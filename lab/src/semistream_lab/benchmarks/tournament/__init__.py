"""How `semistream bench peers` is held: each contestant in a process of its own, in turns, under one memory limit."""
