"""The settings of a run: what there is to set, presets, and the files they are read from."""
