"""What is measured, and the numbers it printed last (``results/summary.json``)."""
