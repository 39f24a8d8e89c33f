"""What is installed, what this machine has, and what of it a run would use."""
