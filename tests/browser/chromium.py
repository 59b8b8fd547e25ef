"""Drives a Chromium through the pipe of its DevTools protocol, which needs no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--mute-audio",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
)
_OWN_SCHEMES = ("data:", "blob:", "about:")
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
_KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def executable() -> str:
    """Return the path of a Chromium; skip the test where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path is not None), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    return found


class BrowserError(Exception):
    """The browser refused a command, or a script on the page failed."""


class Browser:
    """A browser without a network and without a window."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._commands, self._answers = commands, answers
        self._unread = b""
        self._number = 0

    def call(self, method: str, params: Mapping[str, Any] | None = None, **target: str) -> dict[str, Any]:
        """Send a command and return its result; what happens until then is added to ``events``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": dict(params or {}), **target}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._awaited(60)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait(self, seconds: float) -> None:
        """Take in what happens for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (event := self._next(left)) is not None:
            self.events.append(event)

    def _awaited(self, timeout_s: float) -> dict[str, Any]:
        if (message := self._next(timeout_s)) is None:
            raise BrowserError(f"silent for {timeout_s:.0f} s")
        return message

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None where it is not whole in time, and what has come of it is kept."""
        end = time.monotonic() + timeout_s
        while b"\0" not in self._unread:
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            received = os.read(self._answers, 1 << 20)
            if not received:
                raise BrowserError("the browser has ended")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


class Page:
    """A tab that shows one file."""

    def __init__(self, browser: Browser, *, width: int = 1280, height: int = 900) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.call("Target.attachToTarget", {"targetId": self._target, "flatten": True})
        self._session = attached["sessionId"]
        self._address = ""
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a command to the tab and return its result."""
        return self._browser.call(method, params, sessionId=self._session)

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)

    def open(self, path: Path) -> float:
        """Show a file and return after how many seconds it answered: loaded, and its scripts idle."""
        self._address = path.absolute().as_uri()
        self._browser.events.clear()
        began_s = time.monotonic()
        self.call("Page.navigate", {"url": self._address})
        self.until("document.readyState === 'complete'", timeout_s=60)
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return time.monotonic() - began_s

    def run(self, script: str) -> Any:
        """Value of an expression; a promise is awaited."""
        params = {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, condition: str, *, timeout_s: float = 10) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout_s
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < end, f"not after {timeout_s:.0f} s: {condition}"
            self._browser.wait(0.02)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = _KEYS[key]
        event = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        text = {"text": "\r" if key == "Enter" else key} if key in (" ", "Enter") else {}
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event, **text})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def type(self, text: str) -> None:
        """Write a text into what has the focus."""
        self.call("Input.insertText", {"text": text})

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is to be seen as PNG, or the whole page."""
        answer = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(answer["data"]))

    @property
    def requests(self) -> list[str]:
        """What the page has asked for, beside itself and the files that lie beside it."""
        sent = [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")]
        beside = self._address.rpartition("/")[0] + "/"
        return [url for url in sent if not url.startswith((*_OWN_SCHEMES, beside))]

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions of scripts."""
        thrown = [event["params"]["exceptionDetails"] for event in self._of("Runtime.exceptionThrown")]
        said = [event["params"] for event in self._of("Runtime.consoleAPICalled")]
        logged = [event["params"]["entry"] for event in self._of("Log.entryAdded")]
        return [
            *(details.get("exception", {}).get("description", details["text"]) for details in thrown),
            *(str(each["args"]) for each in said if each["type"] in ("error", "warning", "assert")),
            *(entry["text"] for entry in logged if entry["level"] in ("error", "warning")),
        ]

    @property
    def heap_bytes(self) -> int:
        """What its scripts' objects take, after a collection."""
        self.call("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
        return int(metrics["JSHeapUsedSize"])

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    def _of(self, method: str) -> Iterator[dict[str, Any]]:
        self._browser.wait(0.05)
        return (
            event
            for event in self._browser.events
            if event.get("method") == method and event.get("sessionId") == self._session
        )


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser for the ``with`` block."""
    in_child, commands = os.pipe()
    answers, out_child = os.pipe()
    # The protocol's pipes are descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{in_child} 4>&{out_child}'
    command = ["bash", "-c", shell, executable(), *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command, pass_fds=(in_child, out_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(in_child)
    os.close(out_child)
    try:
        yield Browser(process, commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_bytes(of: Browser) -> int:
    """Return the memory of its largest tab that is no file's: all that pages and their pictures take."""
    renderers = [
        each["id"] for each in of.call("SystemInfo.getProcessInfo")["processInfo"] if each["type"] == "renderer"
    ]
    found = []
    for process in renderers:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
        found.append(next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")))
    return 1024 * max(found)
