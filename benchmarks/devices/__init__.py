"""The devices that figures come from."""
