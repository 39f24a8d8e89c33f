"""The papers' tables and figures, one command each: `deltafl reproduce`."""
