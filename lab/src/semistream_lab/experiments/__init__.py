"""The papers' evaluations as data: run → raw results → claims → report, each step on its own.

``catalog`` describes every experiment; ``semistream experiments`` runs them and writes the report.
"""
