"""Health probe for containers without curl: `python -m controller.cli.probe URL` exits 0 when URL answers 200."""

import sys
from urllib.error import URLError
from urllib.request import urlopen


def main(url: str) -> int:
    """0 when `url` answers 200 within 4 seconds, else 1 with the reason on stderr. Only http and https are probed."""
    if not url.startswith(("http://", "https://")):
        print(f"not an http(s) URL: {url!r}", file=sys.stderr)
        return 1
    try:
        with urlopen(url, timeout=4) as answer:  # noqa: S310  (the scheme is checked above)
            return 0 if answer.status == 200 else 1
    except (URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
