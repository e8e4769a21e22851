"""The device `qai-hub`: phones of Qualcomm AI Hub, by the service's own client."""
