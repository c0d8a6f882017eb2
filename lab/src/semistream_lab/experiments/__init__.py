"""The papers' evaluations as data: run → raw results → claims → report.

Each step can be run alone. ``catalog`` describes every experiment; ``semistream experiments`` runs them and writes the
report.
"""
