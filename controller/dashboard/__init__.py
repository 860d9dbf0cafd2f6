"""What the controller shows in a browser: the dashboard, and `/status`, the same figures without scripts."""
