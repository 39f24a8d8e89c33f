"""What others could learn from a run: the audit, the attacks, what is left to guess."""
