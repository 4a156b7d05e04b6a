"""Makes every call of the fake DigitalOcean with the vendor's own client, and fails if the two disagree.

Usage: digitalocean.py BASE_URL TOKEN

The account must be new and must enforce the real rate limits. Its actions must take between 0.2 s and 2 s. It has:
- two droplets in one region and one in another, all without a reserved address
- one unassigned BYOIP address (bring your own IP), 192.0.2.77, in the region of the two droplets
- no domain, and only the default project

Out: one line for each call: "pydo", the call's name and what was checked, separated by tabs. The program stops at the
first disagreement, with a traceback and a nonzero exit status.

If the client's documentation has a template of the response, the response must match it: it has no other keys, has all
required keys, and every value has the template's JSON type. The client has no methods for the old floating_ips calls.
This script sends them with `send_request`, and compares them with the reserved_ips templates after replacing the names.
The vendor documents the two APIs as equal except for the names.
"""

import ast
import inspect
import re
import sys
import time
from datetime import datetime

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.rest import HttpRequest
from pydo import Client

# Keys that are null in the vendor's published examples, although the templates only show a type.
NULLABLE = {
    "completed_at",  # while the action is in progress
    "droplet",  # while the address is unassigned
    "kernel",
    "next_backup_window",
    "zone_file",  # in the response to the domain's creation
    "priority",
    "port",
    "weight",
    "flags",
    "tag",
}
ACTION_SECONDS_MAX = 5.0
CREATES_PER_MINUTE_MAX = 12
BYOIP = "192.0.2.77"
VENDOR_URL = re.compile(r"https?://[^/]+/v2/")


class Template:
    """The shape of a response, parsed from a docstring of the client."""

    def __init__(self, lines):
        indent = len(lines[0]) - len(lines[0].lstrip())
        code, comments = [], []
        for line in lines:
            depth = len(line) - len(line.lstrip()) - indent
            if depth % 4 == 2:
                comments[-1] += " " + line.strip()
                continue
            text, comment = re.fullmatch(r'((?:[^"#]|"[^"]*")*)(?:# ?(.*))?', line).groups()
            code.append(text)
            comments.append(comment or "")
        code[0] = code[0].replace("response == ", "").strip()
        self.root = ast.parse("\n".join(code), mode="eval").body
        self.comments = comments

    def check(self, answer):
        self._check(answer, self.root, "response")

    def _check(self, value, node, path):
        if isinstance(node, ast.Dict):
            assert isinstance(value, dict), f"{path} is {value!r}, not an object"
            if node.keys:
                self._check_object(value, node, path)
        elif isinstance(node, ast.List):
            assert isinstance(value, list), f"{path} is {value!r}, not a list"
            for index, item in enumerate(value):
                self._check(item, node.elts[0], f"{path}[{index}]")
        elif isinstance(node, ast.Name):
            assert node.id == "bool" and isinstance(value, bool), f"{path} is {value!r}, not {node.id}"
        else:
            check_scalar(value, node.value, path)

    def _check_object(self, value, node, path):
        known = {}
        for key, child in zip(node.keys, node.values):
            known[key.value] = child
            is_required = "Required." in self.comments[key.lineno - 1]
            assert key.value in value or not is_required, f"{path} lacks the required key {key.value}"
        for key, item in value.items():
            assert key in known, f"{path} has {key}, which the vendor does not document"
            if item is None:
                assert key in NULLABLE, f"{path}.{key} is null"
            else:
                self._check(item, known[key], f"{path}.{key}")


def check_scalar(value, example, path):
    if isinstance(example, bool):
        good = isinstance(value, bool)
    elif isinstance(example, int):
        good = isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(example, float):
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
    elif example == "2020-02-20 00:00:00":
        good = isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    else:
        good = isinstance(value, str)
    assert good, f"{path} is {value!r}, but the vendor's example is {example!r}"


def templates_of(operation, renamed=("", "")):
    """The templates in an operation's documentation, by HTTP status."""
    found, statuses, block = {}, [], None
    for line in inspect.getdoc(operation).replace(*renamed).splitlines():
        heading = re.match(r"\s*# response body for status code\(s\): ([\d, ]+)", line)
        if heading:
            statuses = [int(status) for status in heading[1].split(",")]
        elif line.strip() == "response == {":
            block = [line]
        elif block is not None:
            block.append(line)
            if line == block[0].replace("response == {", "}"):
                found.update(dict.fromkeys(statuses, Template(block)))
                block = None
    return found


class Certification:
    """The vendor's client. Prints one line for each call that it agreed with."""

    def __init__(self, base_url, token):
        # Retries would hide the errors that this script expects.
        self.client = Client(token, endpoint=base_url, retry_total=0)

    def line(self, route, what):
        print("pydo", route, what, sep="\t", flush=True)

    def call(self, route, what, *args, status=200, **kwargs):
        """Makes a call by its name, and checks its status, headers and shape."""
        operation = self.operation(route)
        answer = operation(*args, cls=lambda run, body, headers: (run, body, headers), enforce_https=False, **kwargs)
        run, body, headers = answer
        assert run.http_response.status_code == status, f"{route}: {run.http_response.status_code}, not {status}"
        check_rate_headers(headers)
        self.check_shape(route, what, templates_of(operation), status, body)
        return body

    def old_call(self, route, what, method, path, status=200, **kwargs):
        """Makes a floating_ips call, for which the client has no method, and checks it like the reserved_ips call."""
        operation = self.operation(route.replace("floating", "reserved"))
        request = HttpRequest(method, f"/v2/floating_ips{path}", **kwargs)
        answer = self.client.send_request(request, enforce_https=False)
        answer.raise_for_status()
        assert answer.status_code == status, f"{route}: {answer.status_code}, not {status}"
        check_rate_headers({name: int(answer.headers[name]) for name in answer.headers if name.startswith("ratelimit")})
        body = answer.json() if answer.content else None
        templates = templates_of(operation, renamed=("reserved_ip", "floating_ip"))
        self.check_shape(route, f"{what}, sent with send_request", templates, status, body)
        return body

    def check_shape(self, route, what, templates, status, body):
        if status == 204:
            assert body is None, f"{route}: 204 with a body: {body!r}"
            shape = "no body"
        else:
            templates[status].check(body)
            shape = "pydo's response template"
        self.line(route, f"{status}, {shape}, {what}")

    def refused(self, route, what, status, error_id, error_type, call):
        """Makes a call that must fail, and checks the exception that the client raises."""
        try:
            call()
        except HttpResponseError as error:
            assert type(error) is error_type, f"{route}: {type(error)}, not {error_type}"
            assert error.status_code == status, f"{route}: {error.status_code}, not {status}"
            body = error.response.json()
            assert set(body) == {"id", "message"} and body["id"] == error_id, f"{route}: {body}"
            assert isinstance(body["message"], str) and body["message"], f"{route}: {body}"
            self.line(route, f"{status}, {error_type.__name__} with id {error_id}, {what}")
            return error
        raise AssertionError(f"{route}: {what} did not fail")

    def operation(self, route):
        group, name = route.split(".")
        return getattr(getattr(self.client, group), name)

    def refused_call(self, route, what, status, error_id, error_type, *args, **kwargs):
        def call():
            self.operation(route)(*args, enforce_https=False, **kwargs)

        return self.refused(route, what, status, error_id, error_type, call)

    def missing(self, route, what, *args, **kwargs):
        """Makes a call that must return 404. A documented 404 comes as a body, not as an exception."""
        body = self.call(route, what, *args, status=404, **kwargs)
        assert body["id"] == "not_found", f"{route}: {body}"

    def when_unlocked(self, ip, ask):
        """Waits until an address is no longer locked, then calls `ask` and returns its result."""
        give_up = time.monotonic() + ACTION_SECONDS_MAX
        while time.monotonic() < give_up:
            reserved = self.client.reserved_ips.get(ip, enforce_https=False)["reserved_ip"]
            if not reserved["locked"]:
                return ask()
            time.sleep(0.2)
        raise AssertionError(f"{ip} was still locked after {ACTION_SECONDS_MAX} s")


def check_rate_headers(headers):
    assert headers["ratelimit-limit"] == 5000, headers
    assert 0 < headers["ratelimit-remaining"] < 5000, headers
    assert headers["ratelimit-reset"] >= 0, headers


def check_pages(body, path, per_page, page, last):
    """Checks that a page links to its neighbours, to the first and to the last page, and to no other."""
    pages = body["links"].get("pages", {})
    expected = {}
    if page > 1:
        expected |= {"first": 1, "prev": page - 1}
    if page < last:
        expected |= {"next": page + 1, "last": last}
    assert set(pages) == set(expected), pages
    for name, number in expected.items():
        url, query = pages[name].split("?")
        assert VENDOR_URL.sub("", url) == path, pages[name]
        assert dict(pair.split("=") for pair in query.split("&")) == {
            "page": str(number),
            "per_page": str(per_page),
        }, pages[name]


def public_addresses(droplet):
    return [net["ip_address"] for net in droplet["networks"]["v4"] if net["type"] == "public"]


def certify_droplets(cert):
    body = cert.call("droplets.list", "three droplets with region, status, and public and private networks")
    droplets = body["droplets"]
    assert body["meta"]["total"] == len(droplets) == 3 and body["links"] == {}, body
    assert all(droplet["status"] == "active" for droplet in droplets)
    assert all(len(public_addresses(droplet)) == 1 for droplet in droplets)
    regions = [droplet["region"]["slug"] for droplet in droplets]
    here = max(regions, key=regions.count)
    first, second = [droplet for droplet in droplets if droplet["region"]["slug"] == here]
    [stranger] = [droplet for droplet in droplets if droplet["region"]["slug"] != here]

    body = cert.call("droplets.list", "page 2 of 3 and its links", per_page=1, page=2)
    assert [droplet["id"] for droplet in body["droplets"]] == [droplets[1]["id"]] and body["meta"]["total"] == 3
    check_pages(body, "droplets", per_page=1, page=2, last=3)
    body = cert.call("droplets.get", "the same as in the list", first["id"])
    assert body["droplet"] == first
    cert.missing("droplets.get", "unknown droplet", 999_999)
    return here, first["id"], second["id"], stranger["id"]


def certify_projects(cert):
    body = cert.call("projects.list", "only the default project")
    [default] = body["projects"]
    assert default["is_default"] is True and body["meta"]["total"] == 1
    assert cert.call("projects.get_default", "the same as in the list")["project"] == default
    wanted = {"name": "pool", "purpose": "Service or API", "description": "addresses", "environment": "Production"}
    project = cert.call("projects.create", "returns the requested fields", body=wanted, status=201)["project"]
    assert {key: project[key] for key in wanted} == wanted and project["is_default"] is False
    assert cert.call("projects.get", "the same as at creation", project["id"])["project"] == project
    listed = cert.call("projects.list", "both projects")["projects"]
    assert {entry["id"] for entry in listed} == {default["id"], project["id"]}
    cert.refused_call("projects.create", "an existing name", 409, "conflict", ResourceExistsError, body=wanted)
    args = ("projects.create", "no purpose", 422, "unprocessable_entity", HttpResponseError)
    cert.refused_call(*args, body={"name": "x"})
    cert.missing("projects.get", "unknown project", "00000000-0000-4000-8000-ffffffffffff")
    body = cert.call("projects.list_resources", "a new project is empty", project["id"])
    assert body["resources"] == [] and body["meta"]["total"] == 0
    cert.missing("projects.list_resources", "unknown project", "00000000-0000-4000-8000-ffffffffffff")
    return default["id"], project["id"]


def certify_addresses(cert, here, droplets, projects):
    first, second, stranger = droplets
    default, project = projects

    body = cert.call("reserved_ips.create", "in a region and the default project", body={"region": here}, status=202)
    plain = body["reserved_ip"]
    assert plain["droplet"] is None and plain["locked"] is False and plain["region"]["slug"] == here
    assert plain["project_id"] == default and body["links"] == {}
    wanted = {"region": here, "project_id": project}
    marked = cert.call("reserved_ips.create", "in a project", body=wanted, status=202)["reserved_ip"]
    assert marked["project_id"] == project and marked["ip"] != plain["ip"]

    body = cert.call("reserved_ips.create", "for a droplet, with an action", body={"droplet_id": first}, status=202)
    held = body["reserved_ip"]
    assert held["droplet"] is None and held["locked"] is True
    [link] = body["links"]["actions"]
    assert link["rel"] == "assign_ip" and link["href"].endswith(f"/v2/actions/{link['id']}")
    assert [link["id"] for link in body["links"]["droplets"]] == [first]

    for what, wanted, status, error_id in [
        ("unknown droplet", {"droplet_id": 999_999}, 404, "not_found"),
        ("unknown project", {"region": here, "project_id": "nowhere"}, 404, "not_found"),
        ("a droplet with a pending assignment", {"droplet_id": first}, 422, "unprocessable_entity"),
        ("neither region nor droplet", {}, 422, "unprocessable_entity"),
    ]:
        error_type = ResourceNotFoundError if status == 404 else HttpResponseError
        cert.refused_call("reserved_ips.create", what, status, error_id, error_type, body=wanted)

    def get_held():
        body = cert.call("reserved_ips.get", "unlocked and on the droplet after the action", held["ip"])
        return body["reserved_ip"]

    settled = cert.when_unlocked(held["ip"], get_held)
    template = templates_of(cert.client.droplets.get)[200]
    template.check({"droplet": settled["droplet"]})
    assert settled["droplet"]["id"] == first
    droplet = cert.call("droplets.get", "its reserved address is the last public one", first)["droplet"]
    assert public_addresses(droplet)[-1] == held["ip"] and len(public_addresses(droplet)) == 2
    assert settled["droplet"] == droplet
    action = cert.call("actions.get", "completed", link["id"])["action"]
    assert action["status"] == "completed" and action["type"] == "assign_ip" and action["region_slug"] == here
    cert.missing("actions.get", "unknown action", 999_999_999)
    cert.missing("reserved_ips.get", "unknown address", "192.0.2.250")

    resources = cert.call("projects.list_resources", "the address, as a floating IP", project)["resources"]
    assert [resource["urn"] for resource in resources] == [f"do:floatingip:{marked['ip']}"]
    assert resources[0]["status"] == "ok" and resources[0]["links"]["self"].endswith(f"/{marked['ip']}")
    body = cert.call("projects.list_resources", "page 1 of the default project", default, per_page=2)
    assert len(body["resources"]) == 2 and body["meta"]["total"] == 6
    check_pages(body, f"projects/{default}/resources", per_page=2, page=1, last=3)

    body = cert.call("reserved_ips.list", "every address with its holder, one page")
    by_ip = {entry["ip"]: entry for entry in body["reserved_ips"]}
    assert len(by_ip) == body["meta"]["total"] == 3 and body["links"] == {}
    assert by_ip[held["ip"]] == settled and by_ip[marked["ip"]] == marked and by_ip[plain["ip"]] == plain
    seen = []
    for page in (1, 2):
        body = cert.call("reserved_ips.list", f"page {page} of 2 and its links", per_page=2, page=page)
        check_pages(body, "reserved_ips", per_page=2, page=page, last=2)
        seen += [entry["ip"] for entry in body["reserved_ips"]]
    assert sorted(seen) == sorted(by_ip)
    assert BYOIP not in by_ip
    byoip = cert.call("reserved_ips.get", "a BYOIP address, which no list contains", BYOIP)["reserved_ip"]
    assert byoip["ip"] == BYOIP and byoip["droplet"] is None and byoip["region"]["slug"] == here
    return plain["ip"], marked["ip"], held["ip"], BYOIP


def certify_actions(cert, here, droplets, addresses):
    first, second, stranger = droplets
    plain, marked, held, byoip = addresses

    def assign(ip, droplet, what):
        body = {"type": "assign", "droplet_id": droplet}
        return cert.call("reserved_ips_actions.post", what, ip, body=body, status=201)["action"]

    def refused(ip, body, what):
        args = ("reserved_ips_actions.post", what, 422, "unprocessable_entity", HttpResponseError, ip)
        cert.refused_call(*args, body=body)

    def get_action(ip, action, what):
        return cert.call("reserved_ips_actions.get", what, ip, action["id"])["action"]

    refused(held, {"type": "assign", "droplet_id": first}, "the droplet that already holds it")
    refused(plain, {"type": "assign", "droplet_id": first}, "a droplet that has an address")
    refused(plain, {"type": "assign", "droplet_id": stranger}, "a droplet in another region")
    refused(plain, {"type": "unassign"}, "an address that is on no droplet")
    refused(plain, {"type": "fly"}, "an unknown type")
    unknown = {"type": "assign", "droplet_id": 999_999}
    cert.missing("reserved_ips_actions.post", "unknown droplet", plain, body=unknown)
    cert.missing("reserved_ips_actions.post", "unknown address", "192.0.2.250", body=unknown)

    move = assign(held, second, "a move from a live holder is one action; in progress")
    assert move["status"] == "in-progress" and move["completed_at"] is None and move["type"] == "assign_ip"
    assert move["resource_type"] == "reserved_ip" and move["region"]["slug"] == here
    refused(held, {"type": "unassign"}, "an action while another is pending")
    refused(plain, {"type": "assign", "droplet_id": second}, "a droplet with a pending event")
    busy = cert.call("reserved_ips.get", "locked and still on the old holder", held)["reserved_ip"]
    assert busy["locked"] is True and busy["droplet"]["id"] == first
    args = ("reserved_ips.delete", "a locked address", 422, "unprocessable_entity", HttpResponseError, held)
    cert.refused_call(*args)
    assert get_action(held, move, "in progress")["status"] == "in-progress"

    ended = cert.when_unlocked(held, lambda: get_action(held, move, "completed, with its end time"))
    assert ended["status"] == "completed" and ended["id"] == move["id"]
    assert datetime.fromisoformat(ended["completed_at"]) >= datetime.fromisoformat(ended["started_at"])
    moved = cert.call("reserved_ips.get", "on the new holder", held)["reserved_ip"]
    assert moved["droplet"]["id"] == second
    freed = cert.call("droplets.get", "the old holder has only its own public address", first)["droplet"]
    assert len(public_addresses(freed)) == 1

    leave = cert.call("reserved_ips_actions.post", "unassign", held, body={"type": "unassign"}, status=201)["action"]
    assert leave["type"] == "unassign_ip" and leave["status"] == "in-progress"
    ended = cert.when_unlocked(held, lambda: get_action(held, leave, "completed"))
    assert ended["status"] == "completed"
    assert cert.call("reserved_ips.get", "on no droplet", held)["reserved_ip"]["droplet"] is None
    body = cert.call("reserved_ips_actions.list", "all three actions, the newest first", held)
    assert [action["id"] for action in body["actions"]][:2] == [leave["id"], move["id"]]
    assert body["meta"]["total"] == 3
    # The method has no parameters for pages, so the test passes them as query parameters.
    body = cert.call("reserved_ips_actions.list", "page 2 of 2", held, params={"per_page": "2", "page": "2"})
    assert len(body["actions"]) == 1
    check_pages(body, f"reserved_ips/{held}/actions", per_page=2, page=2, last=2)
    cert.missing("reserved_ips_actions.list", "unknown address", "192.0.2.250")
    cert.missing("reserved_ips_actions.get", "unknown action", held, 999_999_999)
    cert.missing("reserved_ips_actions.get", "the action of another address", plain, move["id"])

    alone = assign(byoip, first, "a BYOIP address")
    cert.missing("reserved_ips_actions.get", "the action of a BYOIP address", byoip, alone["id"])
    cert.missing("actions.get", "the action of a BYOIP address", alone["id"])

    def get_byoip():
        return cert.call("reserved_ips.get", "a BYOIP address, assigned nevertheless", byoip)["reserved_ip"]

    assert cert.when_unlocked(byoip, get_byoip)["droplet"]["id"] == first

    cert.call("reserved_ips.delete", "an unassigned address", marked, status=204)
    cert.missing("reserved_ips.delete", "already deleted", marked)


def certify_old_names(cert, here, droplets, addresses):
    second = droplets[1]
    plain = addresses[0]
    total = cert.client.reserved_ips.list(enforce_https=False)["meta"]["total"]

    body = cert.old_call("floating_ips.create", "reserved in a region", "POST", "", 202, json={"region": here})
    created = body["floating_ip"]
    assert created["locked"] is False and created["droplet"] is None and body["links"] == {}
    body = cert.old_call("floating_ips.list", "the same addresses under the old names", "GET", "?page=1&per_page=200")
    assert body["meta"]["total"] == total + 1 and created in body["floating_ips"]
    body = cert.old_call("floating_ips.list", "page 2 of 2 and its links", "GET", "?page=2&per_page=2")
    check_pages(body, "floating_ips", per_page=2, page=2, last=(total + 2) // 2)
    body = cert.old_call("floating_ips.get", "the same as at creation", "GET", f"/{created['ip']}")
    assert body["floating_ip"] == created

    wanted = {"type": "assign", "droplet_id": second}
    path = f"/{created['ip']}/actions"
    action = cert.old_call("floating_ips_actions.post", "assign, in progress", "POST", path, 201, json=wanted)["action"]
    assert action["status"] == "in-progress" and action["resource_type"] == "floating_ip"

    def get_action():
        return cert.old_call("floating_ips_actions.get", "completed", "GET", f"{path}/{action['id']}")["action"]

    assert cert.when_unlocked(created["ip"], get_action)["status"] == "completed"
    body = cert.old_call("floating_ips_actions.list", "only this action", "GET", path)
    assert [entry["id"] for entry in body["actions"]] == [action["id"]] and body["meta"]["total"] == 1
    held = cert.call("reserved_ips.get", "a change with the old API is visible in the new API", created["ip"])
    assert held["reserved_ip"]["droplet"]["id"] == second

    for route, what, method, path, wanted, status in [
        ("floating_ips.get", "unknown address", "GET", "/192.0.2.250", None, 404),
        ("floating_ips_actions.post", "a droplet that has an address", "POST", f"/{plain}/actions", wanted, 422),
    ]:
        error_id = "not_found" if status == 404 else "unprocessable_entity"
        request = HttpRequest(method, f"/v2/floating_ips{path}", json=wanted)
        answer = cert.client.send_request(request, enforce_https=False)
        cert.refused(route, what, status, error_id, HttpResponseError, answer.raise_for_status)
    cert.old_call("floating_ips.delete", "an assigned address", "DELETE", f"/{created['ip']}", 204)
    cert.missing("reserved_ips.get", "an address released with the old API", created["ip"])


def certify_domains(cert):
    assert cert.call("domains.list", "none yet")["domains"] == []
    wanted = {"name": "example.com", "ip_address": "203.0.113.200"}
    domain = cert.call("domains.create", "with an address for the apex", body=wanted, status=201)["domain"]
    assert domain == {"name": "example.com", "ttl": 1800, "zone_file": None}
    again = ("domains.create", "an existing name", 422, "unprocessable_entity", HttpResponseError)
    cert.refused_call(*again, body=wanted)
    domain = cert.call("domains.get", "with its zone file", "example.com")["domain"]
    assert domain["name"] == "example.com" and "203.0.113.200" in domain["zone_file"]
    assert cert.call("domains.list", "only this domain")["domains"] == [domain]
    cert.missing("domains.get", "unknown domain", "example.net")

    body = cert.call("domains.list_records", "the initial records of a domain", "example.com")
    assert sorted(record["type"] for record in body["domain_records"]) == ["A", "NS", "NS", "NS", "SOA"]

    wanted = {"type": "A", "name": "www", "data": "203.0.113.1", "ttl": 60}
    record = cert.call("domains.create_record", "type A", "example.com", body=wanted, status=201)["domain_record"]
    assert {key: record[key] for key in wanted} == wanted and record["priority"] is record["port"] is None
    wanted = {"type": "SRV", "name": "_sip._tcp", "data": "www", "priority": 10, "port": 5060, "weight": 5}
    service = cert.call("domains.create_record", "type SRV", "example.com", body=wanted, status=201)["domain_record"]
    assert {key: service[key] for key in wanted} == wanted and service["ttl"] == 1800
    bad = {"type": "A", "name": "www", "data": "not an address"}
    args = ("domains.create_record", "bad data", 422, "unprocessable_entity", HttpResponseError, "example.com")
    cert.refused_call(*args, body=bad)
    cert.missing("domains.create_record", "unknown domain", "example.net", body=bad)
    body = cert.call("domains.get_record", "the same as at creation", "example.com", record["id"])
    assert body["domain_record"] == record
    cert.missing("domains.get_record", "unknown record", "example.com", 1)

    # 21 records of one name need two pages, because the default page size is 20.
    for host in range(2, 22):
        wanted = {"type": "A", "name": "www", "data": f"203.0.113.{host}", "ttl": 60}
        cert.client.domains.create_record("example.com", body=wanted, enforce_https=False)
    wanted = {"name": "www.example.com", "type": "A"}
    body = cert.call("domains.list_records", "by full name and type, page 1 of 2 by default", "example.com", **wanted)
    assert len(body["domain_records"]) == 20 and body["meta"]["total"] == 21 and "next" in body["links"]["pages"]
    rest = cert.call("domains.list_records", "by full name and type, page 2 of 2", "example.com", page=2, **wanted)
    values = [record["data"] for record in body["domain_records"] + rest["domain_records"]]
    assert sorted(values) == sorted(f"203.0.113.{host}" for host in range(1, 22))
    assert rest["links"]["pages"].keys() == {"first", "prev"}
    body = cert.call("domains.list_records", "relative names match nothing", "example.com", name="www")
    assert body["domain_records"] == []
    body = cert.call("domains.list_records", "only by type", "example.com", type="SRV")
    assert body["domain_records"] == [service]
    body = cert.call("domains.list_records", "page 2 of 4 and its links", "example.com", per_page=7, page=2)
    check_pages(body, "domains/example.com/records", per_page=7, page=2, last=4)
    cert.missing("domains.list_records", "unknown domain", "example.net")

    wanted = {"type": "A", "name": "www", "data": "203.0.113.99", "ttl": 90}
    body = cert.call("domains.update_record", "a new address and TTL", "example.com", record["id"], body=wanted)
    assert body["domain_record"] == record | wanted
    part = {"type": "A", "name": "web"}
    body = cert.call("domains.patch_record", "only the name", "example.com", record["id"], body=part)
    assert body["domain_record"] == record | wanted | {"name": "web"}
    assert cert.call("domains.get_record", "as changed", "example.com", record["id"]) == body
    cert.missing("domains.update_record", "unknown record", "example.com", 1, body=wanted)
    cert.missing("domains.patch_record", "unknown record", "example.com", 1, body=wanted)
    cert.call("domains.delete_record", "an existing record", "example.com", record["id"], status=204)
    cert.missing("domains.delete_record", "already deleted", "example.com", record["id"])
    cert.missing("domains.get_record", "already deleted", "example.com", record["id"])


def certify_project_deletion(cert, here, projects):
    default, project = projects
    wanted = {"region": here, "project_id": project}
    marked = cert.client.reserved_ips.create(body=wanted, enforce_https=False)["reserved_ip"]
    body = cert.call("projects.delete", "a project that is not empty", project, status=412)
    assert body["id"] == "precondition_failed"
    cert.client.reserved_ips.delete(marked["ip"], enforce_https=False)
    cert.call("projects.delete", "an empty project", project, status=204)
    cert.missing("projects.delete", "already deleted", project)
    assert cert.call("projects.delete", "the default project", default, status=412)["id"] == "precondition_failed"


def certify_refusals(cert, base_url, here):
    stranger = Client("wrong", endpoint=base_url, retry_total=0)
    args = ("reserved_ips.list", "a wrong token", 401, "unauthorized", ClientAuthenticationError)
    cert.refused(*args, lambda: stranger.reserved_ips.list(enforce_https=False))

    def create_too_many():
        for _ in range(CREATES_PER_MINUTE_MAX + 1):
            cert.client.reserved_ips.create(body={"region": here}, enforce_https=False)

    args = ("reserved_ips.create", "above the limit per minute", 429, "too_many_requests", HttpResponseError)
    error = cert.refused(*args, create_too_many)
    headers = error.response.headers
    assert 0 < int(headers["retry-after"]) <= 60 and headers["ratelimit-limit"] == "5000", headers
    assert headers["ratelimit-remaining"] == "0" and int(headers["ratelimit-reset"]) > 0, headers
    cert.call("reserved_ips.list", "other calls succeed while creates are throttled", per_page=1)


def main():
    base_url, token = sys.argv[1:]
    cert = Certification(base_url, token)
    here, *droplets = certify_droplets(cert)
    projects = certify_projects(cert)
    addresses = certify_addresses(cert, here, droplets, projects)
    certify_actions(cert, here, droplets, addresses)
    certify_old_names(cert, here, droplets, addresses)
    certify_domains(cert)
    certify_project_deletion(cert, here, projects)
    certify_refusals(cert, base_url, here)


if __name__ == "__main__":
    main()
