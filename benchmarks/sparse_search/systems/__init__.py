"""One file per system, named as the system; each has a class `Measured`."""
