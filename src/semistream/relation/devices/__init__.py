"""Devices: pages by number into frames, from files, simulated, or mapped past updates."""
