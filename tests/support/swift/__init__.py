"""Runs simple Swift in Python: the project's Swift sources are for phones, and no Swift compiler is here."""
