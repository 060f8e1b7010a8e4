"""What only sparse encoders need: counts of terms, and the weight that meets a target."""
