"""The engines' table: files, workers, measuring, results, pages."""
