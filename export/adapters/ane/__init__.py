"""The layout of activations for Apple's Neural Engine."""
