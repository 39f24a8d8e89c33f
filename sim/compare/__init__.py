"""`deltafl compare`: finished runs in pairs, with intervals, tests and effect sizes."""
