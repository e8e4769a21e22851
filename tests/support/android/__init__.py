"""Fixtures for the tests of android_demo, which read them from the folder that the property ``pocketbert.fixtures`` names."""
