"""A small static program that tells what a processor is and what it can do, without Python on the target."""
