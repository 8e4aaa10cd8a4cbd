"""What `helm test` runs: wait until the gateway is ready, then get one completion from it. One
that does not become ready is shown to `baton doctor`.

Arguments: URL, prompt (empty: readiness is enough), time limit in seconds, file with an API key or
nothing.
"""

import json
import pathlib
import subprocess
import sys
import time
import urllib.request

POLL_S = 1.0


def main(url, prompt, timeout_s, key_file):
    key = pathlib.Path(key_file).read_text().strip() if key_file else ""
    deadline_s = time.monotonic() + timeout_s
    while not ready(url):
        if time.monotonic() > deadline_s:
            sys.stderr.write(f"{url} is not ready after {timeout_s:g} s\n")
            doctor = [sys.executable, "-m", "services.cli", "doctor", "--url", url]
            subprocess.run(doctor, check=False)
            return 1
        time.sleep(POLL_S)
    if not prompt:
        sys.stdout.write("ready\n")
        return 0
    model = ask(f"{url}/v1/models", timeout_s, key)["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    answer = ask(f"{url}/v1/completions", timeout_s, key, body)
    num_tokens = answer["usage"]["completion_tokens"]
    sys.stdout.write(f"{model}: {num_tokens} tokens\n")
    return 0 if num_tokens > 0 else 1


def ready(url):
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def ask(url, timeout_s, key, body=None):
    """The JSON answer; raises on any status but 2xx."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    if key:
        headers["x-api-key"] = key
    request = urllib.request.Request(url, content, headers)
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]))
