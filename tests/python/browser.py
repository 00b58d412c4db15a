"""A headless Chromium, spoken to over a pair of pipes in the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium")
SECONDS = 20


class Browser:
    """One page of a browser whose profile is `home`; nothing that it shows may reach a network."""

    def __init__(self, home: Path) -> None:
        assert CHROMIUM is not None
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        flags = ["--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={home}", "--host-resolver-rules=MAP * ~NOTFOUND"]
        self._said = (home.parent / "chromium.log").open("wb")
        # The shell puts the pipes where the browser looks for them.
        shell = f'exec 3<&{commands} 4>&{answers}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *flags, "about:blank"],
            pass_fds=(commands, answers),
            stdout=self._said,
            stderr=self._said,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._said.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result; what happens meanwhile is in `events`."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        message = memoryview(json.dumps(command).encode() + b"\0")
        while message:
            message = message[os.write(self._commands, message) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            assert data, f"the browser says nothing more: {Path(self._said.name).read_bytes()[-2000:]!r}"
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, page: Path) -> float:
        """Opens a report and waits until it is drawn; the milliseconds that took since the navigation began."""
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri())
        self.wait("document.documentElement?.dataset.ready !== undefined")
        return float(self.run("document.documentElement.dataset.ready"))

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression is true."""
        until = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Presses a key."""
        typed = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "End": 35, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), **typed)

    def show(self, width: int, height: int, scheme: str = "light") -> None:
        """Sets the window's size and the colour scheme that the reader prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        """Writes what is seen as a PNG."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
