"""Evaluate and compare systems: test sets, system outputs, tables, figures, reports, ratings."""
