"""Places that users name: folders by their paths, or storage by a URL."""

import re

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(place: str) -> bool:
    """Tell whether a place is named by a URL."""
    return _URL.match(place) is not None
