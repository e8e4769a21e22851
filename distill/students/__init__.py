"""Building students, of the teacher's class or of another one."""
