"""Federated data sets: devices with their own samples, split by device into train and test."""
