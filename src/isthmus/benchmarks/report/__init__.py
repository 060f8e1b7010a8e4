"""From finished runs to tables, tests, plots and a verdict per claim."""
