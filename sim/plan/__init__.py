"""What a setting has, before a run: `deltafl plan`."""
