"""XLNet for export."""
