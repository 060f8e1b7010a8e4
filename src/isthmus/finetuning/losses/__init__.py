"""Losses: functions of tensors that hold no model and log nothing."""
