"""The data plane: decodes, reports what happened, obeys the policy. It never waits for the controller."""
