"""From finished cells to tables, tests, plots and a verdict per claim."""
