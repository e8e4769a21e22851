"""What the measuring programs of LiteRT and ONNX Runtime print; and figures that are imported from such texts."""
