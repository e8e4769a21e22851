"""What several wings must read or change in Core ML and TFLite files."""
