"""What passes from encoder to decoder."""
