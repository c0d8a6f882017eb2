"""Devices read pages by number into frames: from files, from object stores, simulated, or through a page map."""
