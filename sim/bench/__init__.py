"""Benchmarks: what the protocol costs on this machine."""
