"""Chromium without a window, driven through its DevTools protocol over two pipes."""

import json
import os
import shutil
import subprocess
from contextlib import suppress

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
    "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
TOLD = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


class Browser:
    """Hold one page of a browser; a context manager that ends it.

    Attributes:
        complaints: What the console got since the last page was opened.
    """

    def __init__(self, folder):
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        redirected = f'exec "$@" 3<&{read} 4>&{write}'
        command = [
            "bash",
            "-c",
            redirected,
            "bash",
            CHROMIUM,
            f"--user-data-dir={folder}",
            *OPTIONS,
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, pass_fds=(read, write), stdout=quiet, stderr=quiet
        )
        os.close(read)
        os.close(write)
        self._number, self._left, self._session, self.complaints = 0, b"", None, []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        found = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self.send("Browser.close", session=None)
        self._process.wait(timeout=20)

    def send(self, method, session="own", **parameters):
        """Return the result of a call."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and session == "own":
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self):
        while b"\0" not in self._left:
            piece = os.read(self._from, 65536)
            assert piece, "the browser has ended"
            self._left += piece
        line, self._left = self._left.split(b"\0", 1)
        message = json.loads(line)
        if message.get("method") in TOLD:
            self.complaints.append(message["params"])
        self._loaded = self._loaded or message.get("method") == "Page.loadEventFired"
        return message

    def open(self, page, width, *, dark=False):
        """Open a page at a width, and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.complaints, self._loaded = [], False
        self.send("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def value(self, expression):
        """Return the value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key, code=0):
        """Press and let go a key, as a user does."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )
