"""The local server and the page with which a browser measures files: `measuring` starts them."""
