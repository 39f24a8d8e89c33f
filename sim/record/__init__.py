"""What a run leaves on disk: events, evaluations, checkpoints, the transcript, the truth."""
