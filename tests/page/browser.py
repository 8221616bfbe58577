"""A headless Chromium, driven over its DevTools protocol through a pipe.  Standard library only.

    with Browser(folder) as browser:
        page = browser.page(width=390, height=844)
        page.open(url)
        page.wait("document.querySelector('h1')")

Every console error, uncaught exception, refused request and violation of the content policy is kept in page.faults.
"""
import base64
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def descriptors():
            os.dup2(to_browser, 13)
            os.dup2(from_browser, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
                 "--hide-scrollbars", "--font-render-hinting=none", f"--user-data-dir={self.folder / 'profile'}", "--remote-debugging-pipe", "about:blank"]
        with open(self.folder / "chromium.log", "wb") as log:
            self.process = subprocess.Popen([PROGRAM, *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=descriptors, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.lock = threading.Condition()
        self.answers, self.sessions, self.count = {}, {}, 0
        self.ended = False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        rest = b""
        while chunk := os.read(self.read_end, 1 << 20):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                with self.lock:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message.get("sessionId") in self.sessions:
                        self.sessions[message["sessionId"]].heard(message["method"], message["params"])
                    self.lock.notify_all()
        with self.lock:
            self.ended = True
            self.lock.notify_all()

    def call(self, method, params=None, session=None, seconds=30):
        with self.lock:
            self.count += 1
            number = self.count
        message = {"id": number, "method": method, "params": params or {}, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data):]
        with self.lock:
            if not self.lock.wait_for(lambda: number in self.answers or self.ended, seconds):
                raise TimeoutError(f"{method} was not answered within {seconds} s")
            if number not in self.answers:
                raise RuntimeError(f"Chromium ended: {(self.folder / 'chromium.log').read_text(errors='replace')[-1500:]}")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, width=1280, height=900, dark=False):
        return Page(self, width, height, dark)

    def close(self):
        try:
            self.call("Browser.close", seconds=5)
            self.process.wait(10)
        except (TimeoutError, RuntimeError, OSError, subprocess.TimeoutExpired):
            pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Page:
    def __init__(self, browser, width, height, dark):
        self.browser = browser
        self.faults, self.dialogs, self.requests = [], [], collections.Counter()
        self.width, self.height = width, height
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        self.target = browser.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        self.session = browser.call("Target.attachToTarget", {"targetId": self.target, "flatten": True})["sessionId"]
        browser.sessions[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", {"timeDomain": "threadTicks"})
        self.size(width, height)
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def call(self, method, params=None, **more):
        return self.browser.call(method, params, self.session, **more)

    def heard(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(f"console {params['type']}: {[one.get('value') or one.get('description') for one in params['args']]}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{params['entry']['text']} ({params['entry'].get('url')})")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            threading.Thread(target=self.call, args=("Page.handleJavaScriptDialog", {"accept": True}), daemon=True).start()
        elif method == "Network.requestWillBeSent":
            self.requests[params["request"]["url"]] += 1

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def open(self, url):
        self.call("Page.navigate", {"url": url})

    def evaluate(self, expression):
        """The value of an expression, a promise's once it is kept."""
        answer = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True, "allowUnsafeEvalBlockedByCSP": False})
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "the expression failed"))
        return answer["result"].get("value")

    def wait(self, expression, seconds=20):
        """Until an expression is true; its value.  It may fail while the page is being replaced."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if value := self.evaluate(f"(() => {{ const value = ({expression}); return value instanceof Node ? true : value; }})()"):
                    return value
            except RuntimeError:
                pass
            time.sleep(0.03)
        raise AssertionError(f"not within {seconds} s: {expression}\n{self.faults}\n{self.text()[:2000]}")

    def busy_ms(self):
        """The CPU time of the page's main thread so far, whoever else uses the machine."""
        return 1000 * next(metric["value"] for metric in self.call("Performance.getMetrics")["metrics"] if metric["name"] == "TaskDuration")

    def text(self):
        return self.evaluate("document.body.innerText") or ""

    def click(self, selector):
        self.evaluate(f"(() => {{ const node = document.querySelector({json.dumps(selector)}); if (!node) throw new Error('nothing is ' + {json.dumps(selector)}); node.click(); }})()")

    def press(self, key, **more):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, **({"text": key} if len(key) == 1 and kind == "keyDown" else {}), **more})

    def screenshot(self, path, whole=True):
        if whole:  # a window as high as the page: charts follow its size
            self.size(self.width, self.evaluate("Math.min(6000, Math.max(innerHeight, document.documentElement.scrollHeight))"))
            time.sleep(0.5)
        shot = self.call("Page.captureScreenshot", {"format": "png"})
        if whole:
            self.size(self.width, self.height)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def accessibility(self):
        """(role, name) of everything that a screen reader is told of."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
