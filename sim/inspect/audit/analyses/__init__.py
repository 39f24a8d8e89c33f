"""The audit of an analysis of devices' tables: what it has beside the audit of a session."""
