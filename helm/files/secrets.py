"""What the hook runs before an install or an upgrade: makes the release's Secret, once.

Its account may create Secrets and nothing else. One of that name that is already there is left as
it is, so an upgrade, or a second run after a failed one, changes nothing.
"""

import base64
import json
import os
import pathlib
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE_S = 60.0
POLL_S = 1.0
AGAIN = (429, 500, 502, 503, 504)
"""answers of an API server that is overloaded or not up yet"""


def main(name, labels, redis_host):
    namespace = (ACCOUNT / "namespace").read_text().strip()
    body = json.dumps(manifest(name, json.loads(labels), redis_host)).encode()
    made = create(f"{api_server()}/api/v1/namespaces/{namespace}/secrets", body)
    sys.stdout.write(f"Secret {name} is {'made' if made else 'there already, and left alone'}\n")


def manifest(name, labels, redis_host):
    """Texts of 256 random bits that need no quoting in a URL."""
    password = secrets.token_urlsafe(32)
    texts = {
        "cell-secret": secrets.token_urlsafe(32),
        "redis-password": password,
        "redis-url": f"redis://:{password}@{redis_host}:6379/0",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
    }


def api_server():
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{os.environ['KUBERNETES_SERVICE_PORT']}"


def create(url, body):
    """Whether it was made now; False if one is there. Exits with the reason of a refusal."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return post(url, body)
        except urllib.error.HTTPError as error:
            if error.code not in AGAIN or time.monotonic() > deadline_s:
                sys.exit(f"the API server refuses ({error.code}): {error.read().decode()}")
        except OSError as error:
            if time.monotonic() > deadline_s:
                sys.exit(f"no answer from {url}: {error}; is there a NetworkPolicy in between?")
        time.sleep(POLL_S)


def post(url, body):
    headers = {
        "authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
        "content-type": "application/json",
    }
    request = urllib.request.Request(url, body, headers)
    trusted = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
    )
    try:
        direct.open(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return False
        raise
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
