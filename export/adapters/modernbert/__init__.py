"""ModernBERT for export."""
