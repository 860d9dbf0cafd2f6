"""HTTP: one router per noun, answers typed by `controller.view`, errors as problem details (RFC 9457)."""
