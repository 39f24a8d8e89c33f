"""Statistics of the devices' own tables, by secure sums: `deltafl analyse`."""
