"""What `helm test` runs: wait until the gateway is ready, then get one completion from it. When
either fails, `baton doctor` says why, by the admin port: no Service of clients leads to a gateway
that is not ready.

Arguments: URL, prompt (empty: readiness is enough), time limit in seconds, file with an API key or
nothing, URL of the admin port.
"""

import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

POLL_S = 1.0


def main(url, prompt, timeout_s, key_file, admin_url):
    key = pathlib.Path(key_file).read_text().strip() if key_file else ""
    deadline_s = time.monotonic() + timeout_s
    while not ready(url):
        if time.monotonic() > deadline_s:
            return failed(f"{url} is not ready after {timeout_s:g} s", admin_url)
        time.sleep(POLL_S)
    if not prompt:
        sys.stdout.write("ready\n")
        return 0
    try:
        model = ask(f"{url}/v1/models", timeout_s, key)["data"][0]["id"]
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        answer = ask(f"{url}/v1/completions", timeout_s, key, body)
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        return failed(f"{error.url} answers {error.code}: {said}", admin_url)
    except OSError as error:
        return failed(f"no answer from {url}: {error}", admin_url)
    num_tokens = answer["usage"]["completion_tokens"]
    sys.stdout.write(f"{model}: {num_tokens} tokens\n")
    return 0 if num_tokens > 0 else 1


def failed(reason, admin_url):
    sys.stderr.write(f"{reason}\n")
    doctor = [sys.executable, "-m", "services.cli", "doctor", "--url", admin_url]
    subprocess.run(doctor, check=False)
    return 1


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
    url, prompt, timeout_s, key_file, admin_url = sys.argv[1:]
    sys.exit(main(url, prompt, float(timeout_s), key_file, admin_url))
