"""DeBERTa v1, v2 and v3 for export."""
