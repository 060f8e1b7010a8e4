"""Teachers: sources of scores that a student learns to reproduce, one file each."""
