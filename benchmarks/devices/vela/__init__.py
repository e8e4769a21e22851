"""The device `vela`: TFLite files compiled for Arm's Ethos-U, with the time and memory that Arm's model of it expects."""
