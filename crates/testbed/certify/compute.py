"""Certifies the fakes of Compute Engine and its metadata server with Google's own clients.

    compute.py BASE_URL METADATA_HOST [RESTRICTED_URL]

BASE_URL serves the project `certified`. It has no reserved addresses, and the instances vm-1 (with an ephemeral
address) and vm-2 (without one) in us-central1-a, and vm-3 (with an ephemeral address and a second interface) in
us-central1-c. The region europe-west4 is unreachable. The caller does not own the domain unverified.example.
METADATA_HOST (host:port) issues the token that BASE_URL accepts. RESTRICTED_URL serves the same project but denies
every permission.

Every call goes through google-cloud-compute, with credentials from google-auth's default chain. Every request and
response is also checked against Compute's discovery document, which google-api-python-client ships: the method, the
path, the names of the query parameters, and every property, type and enum of the bodies.

Out: one line for each check: package, call and what was checked, separated by tabs. The program stops at the first
failure, with a nonzero exit status.
"""

import base64
import datetime
import json
import os
import re
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

BASE, METADATA_HOST = sys.argv[1].rstrip("/"), sys.argv[2]
RESTRICTED = sys.argv[3].rstrip("/") if len(sys.argv) > 3 else None

# google-auth reads these when it is imported. With the empty configuration directory, the credential chain finds only
# the metadata server. Without a proxy, all traffic stays on loopback.
for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "NO_GCE_CHECK"):
    os.environ.pop(name, None)
CONFIGURATION = tempfile.TemporaryDirectory()
os.environ.update(
    GCE_METADATA_HOST=METADATA_HOST,
    GCE_METADATA_IP=METADATA_HOST,
    CLOUDSDK_CONFIG=CONFIGURATION.name,
    NO_PROXY="*",
)

import google.auth
import google.auth.transport.requests
import googleapiclient
import requests
from google.api_core import exceptions
from google.auth.compute_engine import _metadata
from google.cloud import compute_v1

PROJECT, REGION, ZONE = "certified", "us-central1", "us-central1-a"
CLIENT, AUTH = "google-cloud-compute", "google-auth"
LINKS = "https://www.googleapis.com/compute/v1"
DEADLINE_SECONDS = 30


def certified(package, route, what):
    print(package, route, what, sep="\t", flush=True)


def same(found, expected):
    assert found == expected, f"found {found!r} instead of {expected!r}"


# --- The discovery document ---------------------------------------------------------------------------------------------


class Discovery:
    """Checks requests and responses against the published description of the API."""

    def __init__(self):
        documents = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
        self.document = json.loads((documents / "compute.v1.json").read_text())
        self.schemas = self.document["schemas"]
        self.methods = [
            method
            for resource in self.document["resources"].values()
            for method in resource.get("methods", {}).values()
        ]
        self.checked = {}

    def check(self, response):
        """Checks a request and its response. The client's HTTP session calls this for each response."""
        request = response.request
        url = urlsplit(request.url)
        method = self.method(request.method, url.path)
        route = method["id"].removeprefix("compute.")
        self.check_query(method, dict(parse_qsl(url.query, keep_blank_values=True)), route)
        if request.body:
            self.value({"$ref": method["request"]["$ref"]}, json.loads(request.body), f"{route} request")
        same(response.headers["content-type"].split(";")[0], "application/json")
        if response.status_code == 200:
            self.value({"$ref": method["response"]["$ref"]}, response.json(), f"{route} response")
        else:
            self.error(response)
        self.checked[route] = self.checked.get(route, 0) + 1

    def method(self, verb, path):
        prefix = "/" + self.document["servicePath"]
        assert path.startswith(prefix), f"{path} does not start with {prefix}"
        for method in self.methods:
            if method["httpMethod"] == verb and self.is_path_of(method, path.removeprefix(prefix)):
                return method
        raise AssertionError(f"the discovery document has no {verb} {path}")

    @staticmethod
    def is_path_of(method, path):
        parts, template = path.split("/"), method["flatPath"].split("/")
        if len(parts) != len(template):
            return False
        for part, expected in zip(parts, template):
            if not expected.startswith("{"):
                if part != expected:
                    return False
                continue
            pattern = method["parameters"].get(expected.strip("{}"), {}).get("pattern", ".+")
            if not re.fullmatch(pattern, part):
                return False
        return True

    def check_query(self, method, query, route):
        for name, value in query.items():
            parameter = method["parameters"].get(name) or self.document["parameters"].get(name)
            assert parameter, f"{route} has no parameter {name}"
            same(parameter["location"], "query")
            if parameter["type"] == "integer":
                int(value)
            if parameter["type"] == "boolean":
                assert value in ("true", "false"), f"{route}: {name}={value}"
        required = {name for name, parameter in method["parameters"].items() if parameter.get("required")}
        missing = {name for name in required if method["parameters"][name]["location"] == "query"} - query.keys()
        assert not missing, f"{route} lacks {missing}"

    def value(self, schema, value, where):
        """Checks a value against a schema: unknown properties, wrong types and wrong enums are failures."""
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind = schema.get("type")
        if kind == "object":
            assert isinstance(value, dict), f"{where} is not an object: {value!r}"
            properties, others = schema.get("properties", {}), schema.get("additionalProperties")
            for name, inner in value.items():
                known = properties.get(name, others)
                assert known is not None, f"{where} has the unknown property {name}"
                self.value(known, inner, f"{where}.{name}")
        elif kind == "array":
            assert isinstance(value, list), f"{where} is not an array: {value!r}"
            for number, inner in enumerate(value):
                self.value(schema["items"], inner, f"{where}[{number}]")
        else:
            self.scalar(schema, value, where)

    @staticmethod
    def scalar(schema, value, where):
        types = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
        kind, form = schema["type"], schema.get("format")
        is_right = isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))
        assert is_right, f"{where} is not of type {kind}: {value!r}"
        if "enum" in schema:
            assert value in schema["enum"], f"{where} is not a value of the enum: {value!r}"
        if form in ("int64", "uint64"):
            int(value)
        if form == "byte":
            base64.b64decode(value, validate=True)
        if where.endswith(".kind") and "default" in schema:
            assert value == schema["default"], f"{where} is {value!r} instead of {schema['default']!r}"
        if where.endswith(("Timestamp", "Time")):
            assert datetime.datetime.fromisoformat(value).tzinfo, f"{where} has no time zone: {value!r}"

    @staticmethod
    def error(response):
        """Checks an error body. The discovery document does not define it, so this follows Google's documentation."""
        error = response.json()["error"]
        same(error["code"], response.status_code)
        assert isinstance(error["message"], str) and error["errors"]
        for one in error["errors"]:
            assert {"message", "domain", "reason"} <= one.keys(), one
            assert one.keys() <= {"message", "domain", "reason", "location", "locationType"}, one


DISCOVERY = Discovery()


# --- The metadata server, through google-auth ---------------------------------------------------------------------------


def metadata():
    """Gets credentials from google-auth's default chain, which reads everything from the metadata server."""
    responses = []
    session = requests.Session()
    session.hooks["response"].append(lambda response, **_: responses.append(response))
    request = google.auth.transport.requests.Request(session)
    credentials, project = google.auth.default(request=request)
    same(project, PROJECT)
    credentials.refresh(request)
    assert credentials.token and credentials.valid and not credentials.expired
    assert credentials.expiry > datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    same(credentials.universe_domain, "googleapis.com")

    paths = {urlsplit(response.url).path for response in responses}
    root, default = "/computeMetadata/v1", "/computeMetadata/v1/instance/service-accounts/default"
    assert {"/", f"{root}/project/project-id", f"{default}/", f"{default}/token"} <= paths, paths
    assert all(response.headers["metadata-flavor"] == "Google" for response in responses)
    certified(AUTH, "metadata.root", "google.auth.default detects the metadata server")
    certified(AUTH, "metadata.projectId", "google.auth.default gets the project from it")

    info = _metadata.get_service_account_info(request)
    same(info.keys(), {"aliases", "email", "scopes"})
    same(credentials.service_account_email, info["email"])
    same(_metadata.get_service_account_info(request, info["email"]), info)
    certified(AUTH, "metadata.serviceAccount", "the whole account, by alias and by email address")

    token, expiry = _metadata.get_service_account_token(request, scopes=info["scopes"])
    same(token, credentials.token)
    answer = requests.get(f"http://{METADATA_HOST}{default}/token", headers={"Metadata-Flavor": "Google"})
    same(answer.json().keys(), {"access_token", "expires_in", "token_type"})
    same(answer.json()["token_type"], "Bearer")
    refused = requests.get(f"http://{METADATA_HOST}{default}/token")
    same(refused.status_code, 403)
    certified(AUTH, "metadata.token", "token, expiry and type; 403 without the Metadata-Flavor header")

    same(_metadata.get(request, "instance/service-accounts/default/email"), info["email"])
    certified(AUTH, "metadata.email", "plain text, the same as in the account")
    scopes = _metadata.get(request, "instance/service-accounts/default/scopes")
    same(scopes.split(), info["scopes"])
    certified(AUTH, "metadata.scopes", "plain text, one scope per line, the same as in the account")
    same(_metadata.get_universe_domain(request), "googleapis.com")
    certified(AUTH, "metadata.universeDomain", "googleapis.com")
    return credentials


# --- Compute Engine, through google-cloud-compute -----------------------------------------------------------------------


class Cloud:
    """The vendor's clients for one server and one set of credentials."""

    def __init__(self, base, credentials):
        def client(service, transport):
            transport = transport(host=urlsplit(base).netloc, credentials=credentials, url_scheme="http")
            transport._session.hooks["response"].append(lambda response, **_: self.see(response))
            return service(transport=transport)

        services = compute_v1.services
        self.seen = []
        self.addresses = client(
            compute_v1.AddressesClient, services.addresses.transports.AddressesRestTransport
        )
        self.instances = client(
            compute_v1.InstancesClient, services.instances.transports.InstancesRestTransport
        )
        self.zone_operations = client(
            compute_v1.ZoneOperationsClient, services.zone_operations.transports.ZoneOperationsRestTransport
        )
        self.region_operations = client(
            compute_v1.RegionOperationsClient,
            services.region_operations.transports.RegionOperationsRestTransport,
        )
        self.global_operations = client(
            compute_v1.GlobalOperationsClient,
            services.global_operations.transports.GlobalOperationsRestTransport,
        )

    def see(self, response):
        self.seen.append(response)
        DISCOVERY.check(response)

    def done(self, operation):
        """Waits for an operation as the vendor documents it: in a loop, because `wait` may return before it is done."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while operation.status != compute_v1.Operation.Status.DONE:
            assert time.monotonic() < deadline, f"{operation.name} is not done after {DEADLINE_SECONDS} s"
            time.sleep(0.1)
            name = {"project": PROJECT, "operation": operation.name}
            if operation.zone:
                operation = self.zone_operations.wait(zone=operation.zone.rsplit("/", 1)[1], **name)
            else:
                operation = self.region_operations.wait(region=operation.region.rsplit("/", 1)[1], **name)
        same(operation.progress, 100)
        return operation

    def succeeded(self, operation):
        operation = self.done(operation)
        assert not operation.error.errors, operation.error
        return operation

    def attach(self, instance, request_id=None, interface="nic0", zone=ZONE, **config):
        config.setdefault("type_", "ONE_TO_ONE_NAT")
        return self.instances.add_access_config_unary(
            request=compute_v1.AddAccessConfigInstanceRequest(
                project=PROJECT,
                zone=zone,
                instance=instance,
                network_interface=interface,
                request_id=request_id,
                access_config_resource=compute_v1.AccessConfig(**config),
            )
        )

    def detach(self, instance, config="External NAT", interface="nic0", zone=ZONE):
        return self.instances.delete_access_config_unary(
            project=PROJECT, zone=zone, instance=instance, access_config=config, network_interface=interface
        )

    def interfaces(self, instance, zone=ZONE):
        return self.instances.get(project=PROJECT, zone=zone, instance=instance).network_interfaces

    def access_of(self, instance):
        return [(config.name, config.nat_i_p) for config in self.interfaces(instance)[0].access_configs]

    def address(self, name, region=REGION):
        return self.addresses.get(project=PROJECT, region=region, address=name)


def refusal(kind, reason, message, call):
    """Makes a call that must fail, and checks the exception, the reason and the message."""
    try:
        call()
    except exceptions.GoogleAPICallError as error:
        same(type(error), kind)
        same(error.errors[0]["reason"], reason)
        assert message in error.message, error.message
        return error
    raise AssertionError(f"the call did not fail with {reason}")


def addresses(cloud):
    """Creates, reads, labels and lists addresses. Afterwards a1, a2 and a3 exist in the region, and e1 in another."""
    where = {"project": PROJECT, "region": REGION}
    created = {}
    for name, region, tier in [
        ("a1", REGION, "PREMIUM"), ("a2", REGION, "PREMIUM"), ("a3", REGION, "STANDARD"), ("e1", "us-east1", "PREMIUM"),
    ]:
        resource = compute_v1.Address(name=name, network_tier=tier, labels={"owner": "me"} if name != "a3" else {})
        created[name] = cloud.addresses.insert_unary(project=PROJECT, region=region, address_resource=resource)
    first = created["a1"]
    same((first.operation_type, first.kind), ("insert", "compute#operation"))
    same(first.target_link, f"{LINKS}/projects/{PROJECT}/regions/{REGION}/addresses/a1")
    same(first.self_link, f"{LINKS}/projects/{PROJECT}/regions/{REGION}/operations/{first.name}")
    assert first.status in (compute_v1.Operation.Status.PENDING, compute_v1.Operation.Status.RUNNING)
    for operation in created.values():
        cloud.succeeded(operation)
    refusal(
        exceptions.Conflict, "alreadyExists", f"The resource 'projects/{PROJECT}/regions/{REGION}/addresses/a1'",
        lambda: cloud.addresses.insert_unary(address_resource=compute_v1.Address(name="a1"), **where),
    )
    refusal(
        exceptions.BadRequest, "invalid", "Invalid value for field 'resource.name': 'A'.",
        lambda: cloud.addresses.insert_unary(address_resource=compute_v1.Address(name="A"), **where),
    )
    certified(CLIENT, "addresses.insert", "operation with target; labels, tier; 409 for an existing name, 400 for a bad one")

    address = cloud.address("a1")
    same((address.kind, address.name, address.status), ("compute#address", "a1", "RESERVED"))
    same((address.address_type, address.network_tier), ("EXTERNAL", "PREMIUM"))
    same(address.region, f"{LINKS}/projects/{PROJECT}/regions/{REGION}")
    same(address.self_link, first.target_link)
    same((address.id, list(address.users), dict(address.labels)), (first.target_id, [], {"owner": "me"}))
    assert address.id > 2**53 and address.label_fingerprint and address.creation_timestamp
    same(cloud.address("a3").network_tier, "STANDARD")
    error = refusal(
        exceptions.NotFound, "notFound",
        f"The resource 'projects/{PROJECT}/regions/{REGION}/addresses/none' was not found",
        lambda: cloud.address("none"),
    )
    same(error.errors[0]["domain"], "global")
    certified(CLIENT, "addresses.get", "every field; 404 with the real message for an unknown one")

    listed = list(cloud.addresses.list(**where))
    same([address.name for address in listed], ["a1", "a2", "a3"])
    same(listed[0], address)
    pages = cloud.addresses.list(request={"max_results": 2, **where}).pages
    same([[item.name for item in page.items] for page in pages], [["a1", "a2"], ["a3"]])
    filtered = cloud.addresses.list(request={"filter": f"address={address.address}", **where})
    same([item.name for item in filtered], ["a1"])
    newest = cloud.addresses.list(request={"order_by": "creationTimestamp desc", **where})
    same([item.name for item in newest], ["a3", "a2", "a1"])
    refusal(
        exceptions.BadRequest, "invalid", "Invalid value for field 'maxResults': '501'",
        lambda: cloud.addresses.list(request={"max_results": 501, **where}),
    )
    refusal(
        exceptions.BadRequest, "invalid", "Invalid list filter expression",
        lambda: cloud.addresses.list(request={"filter": "name:*", **where}),
    )
    refusal(
        exceptions.NotFound, "notFound", f"The resource 'projects/{PROJECT}/regions/nowhere1' was not found",
        lambda: cloud.addresses.list(project=PROJECT, region="nowhere1"),
    )
    certified(CLIENT, "addresses.list", "pages, filter, order; 400 and 404 for invalid requests")
    aggregated_addresses(cloud)

    def relabel(fingerprint):
        resource = {"labels": {"owner": "you"}, "label_fingerprint": fingerprint}
        return cloud.addresses.set_labels_unary(resource="a1", region_set_labels_request_resource=resource, **where)

    operation = cloud.succeeded(relabel(address.label_fingerprint))
    same(operation.operation_type, "setLabels")
    changed = cloud.address("a1")
    same(dict(changed.labels), {"owner": "you"})
    assert changed.label_fingerprint != address.label_fingerprint
    refusal(
        exceptions.PreconditionFailed, "conditionNotMet", "Labels fingerprint either invalid",
        lambda: relabel(address.label_fingerprint),
    )
    certified(CLIENT, "addresses.setLabels", "labels and their fingerprint change; 412 for a stale fingerprint")


def aggregated_addresses(cloud):
    request = {"project": PROJECT, "return_partial_success": True}
    everything = dict(cloud.addresses.aggregated_list(request=request))
    assert {"global", f"regions/{REGION}", "regions/us-east1"} <= everything.keys()
    same([item.name for item in everything[f"regions/{REGION}"].addresses], ["a1", "a2", "a3"])
    same([item.name for item in everything["regions/us-east1"].addresses], ["e1"])
    same(everything["global"].warning.code, "NO_RESULTS_ON_PAGE")
    same(everything["global"].warning.data[0].value, "global")
    answer = cloud.seen[-1].json()
    same(answer["unreachables"], ["regions/europe-west4"])
    assert "regions/europe-west4" not in everything
    refusal(
        exceptions.ServiceUnavailable, "backendError", "Backend Error",
        lambda: cloud.addresses.aggregated_list(project=PROJECT, retry=None),
    )
    names, pages = [], 0
    for page in cloud.addresses.aggregated_list(request={"max_results": 1, **request}).pages:
        pages += 1
        found = [item.name for scope in page.items.values() for item in scope.addresses]
        same(len(found), 1)
        names += found
    same((sorted(names), pages), (["a1", "a2", "a3", "e1"], 4))
    filtered = cloud.addresses.aggregated_list(request={"filter": "labels.owner=me", **request})
    same(sorted(item.name for _, scope in filtered for item in scope.addresses), ["a1", "a2", "e1"])
    certified(
        CLIENT, "addresses.aggregatedList",
        "scopes with warnings, pages, filter by label, unreachable regions listed or 503",
    )


def instances(cloud):
    where = {"project": PROJECT, "zone": ZONE}
    one = cloud.instances.get(instance="vm-1", **where)
    same((one.kind, one.name, one.status), ("compute#instance", "vm-1", "RUNNING"))
    same(one.zone, f"{LINKS}/projects/{PROJECT}/zones/{ZONE}")
    same(one.self_link, f"{LINKS}/projects/{PROJECT}/zones/{ZONE}/instances/vm-1")
    interface = one.network_interfaces[0]
    same((interface.name, len(one.network_interfaces)), ("nic0", 1))
    config = interface.access_configs[0]
    same((config.type_, config.name, config.network_tier), ("ONE_TO_ONE_NAT", "External NAT", "PREMIUM"))
    assert config.nat_i_p and interface.network_i_p and one.id > 2**53
    same(cloud.access_of("vm-2"), [])
    refusal(
        exceptions.NotFound, "notFound", f"The resource 'projects/{PROJECT}/zones/{ZONE}/instances/none' was not found",
        lambda: cloud.instances.get(instance="none", **where),
    )
    certified(CLIENT, "instances.get", "every field, with and without an ephemeral address; 404 for an unknown one")

    same([item.name for item in cloud.instances.list(**where)], ["vm-1", "vm-2"])
    pages = cloud.instances.list(request={"max_results": 1, **where}).pages
    same([[item.name for item in page.items] for page in pages], [["vm-1"], ["vm-2"]])
    same([item.id for item in cloud.instances.list(request={"filter": "name=vm-1", **where})], [one.id])
    same(list(cloud.instances.list(project=PROJECT, zone="us-central1-b")), [])
    certified(CLIENT, "instances.list", "pages, filter, a zone without instances")

    request = {"project": PROJECT, "return_partial_success": True}
    scopes = dict(cloud.instances.aggregated_list(request=request))
    same([item.name for item in scopes[f"zones/{ZONE}"].instances], ["vm-1", "vm-2"])
    same(scopes["zones/us-central1-b"].warning.code, "NO_RESULTS_ON_PAGE")
    assert "zones/europe-west4-a" in cloud.seen[-1].json()["unreachables"]
    names = [
        item.name
        for page in cloud.instances.aggregated_list(request={"max_results": 1, **request}).pages
        for scope in page.items.values()
        for item in scope.instances
    ]
    same(names, ["vm-1", "vm-2", "vm-3"])
    certified(CLIENT, "instances.aggregatedList", "scopes with warnings, pages, unreachable zones listed")


def access_configs(cloud):
    """Moves a1 from vm-2 to vm-1 as the API requires it, and tries all requests that the API rejects."""
    ip, standard, far = cloud.address("a1").address, cloud.address("a3").address, cloud.address("e1", "us-east1").address
    for reason, message, call in [
        ("badRequest", "At most one access config currently supported.", lambda: cloud.attach("vm-1", nat_i_p=ip)),
        ("invalid", f"'{far}' was not found in region '{REGION}'", lambda: cloud.attach("vm-2", nat_i_p=far)),
        ("invalid", "The network tier of external IP", lambda: cloud.attach("vm-2", nat_i_p=standard)),
        ("invalid", "'resource.type': 'DIRECT_IPV6'", lambda: cloud.attach("vm-2", type_="DIRECT_IPV6")),
        ("invalid", "'requestId': 'mine'", lambda: cloud.attach("vm-2", request_id="mine")),
    ]:
        refusal(exceptions.BadRequest, reason, message, call)

    once = str(uuid.uuid4())
    accepted = cloud.attach("vm-2", request_id=once, nat_i_p=ip, network_tier="PREMIUM")
    same((accepted.operation_type, accepted.zone), ("addAccessConfig", f"{LINKS}/projects/{PROJECT}/zones/{ZONE}"))
    same(cloud.access_of("vm-2"), [])
    cloud.succeeded(accepted)
    again = cloud.attach("vm-2", request_id=once, nat_i_p=ip, network_tier="PREMIUM")
    same((again.id, again.status), (accepted.id, compute_v1.Operation.Status.DONE))
    same(cloud.access_of("vm-2"), [("External NAT", ip)])
    address = cloud.address("a1")
    same((address.status, list(address.users)), ("IN_USE", [accepted.target_link]))

    # vm-1 must first lose its ephemeral address, and a1 is still attached to vm-2.
    ephemeral = cloud.access_of("vm-1")[0][1]
    detached = cloud.succeeded(cloud.detach("vm-1"))
    same(detached.operation_type, "deleteAccessConfig")
    same(cloud.access_of("vm-1"), [])
    failed = cloud.done(cloud.attach("vm-1", nat_i_p=ip))
    same(failed.error.errors[0].code, "IP_IN_USE_BY_ANOTHER_RESOURCE")
    same((failed.http_error_status_code, failed.http_error_message), (409, "CONFLICT"))
    same(cloud.address("a1").status, "IN_USE")

    cloud.succeeded(cloud.detach("vm-2", "another name"))
    same(cloud.access_of("vm-2"), [("External NAT", ip)])
    cloud.succeeded(cloud.detach("vm-2"))
    same(cloud.address("a1").status, "RESERVED")
    moved, given = cloud.attach("vm-1", nat_i_p=ip, name="external-nat"), cloud.attach("vm-2")
    cloud.succeeded(moved)
    cloud.succeeded(given)
    same(cloud.access_of("vm-1"), [("external-nat", ip)])
    (name, fresh), = cloud.access_of("vm-2")
    assert name == "External NAT" and fresh not in (ip, ephemeral), (name, fresh)
    refusal(
        exceptions.NotFound, "notFound", f"zones/{ZONE}/instances/none' was not found", lambda: cloud.attach("none")
    )
    certified(
        CLIENT, "instances.addAccessConfig",
        "reserved and ephemeral, requestId; 400 for a second config, region, tier, type; error in a DONE operation",
    )
    certified(CLIENT, "instances.deleteAccessConfig", "reserved and ephemeral; no effect with another name")

    where = {"project": PROJECT, "region": REGION}
    refusal(
        exceptions.BadRequest, "resourceInUseByAnotherResource",
        f"is already being used by 'projects/{PROJECT}/zones/{ZONE}/instances/vm-1'",
        lambda: cloud.addresses.delete_unary(address="a1", **where),
    )
    same(cloud.succeeded(cloud.addresses.delete_unary(address="a2", **where)).operation_type, "delete")
    refusal(exceptions.NotFound, "notFound", "addresses/a2' was not found", lambda: cloud.address("a2"))
    certified(CLIENT, "addresses.delete", "deleted when the operation is done; 400 while in use")


def interfaces_and_ptr(cloud):
    """Attaches a1 to the second interface of vm-3 with a PTR record, and detaches it again."""
    there = {"zone": "us-central1-c", "interface": "nic1"}
    cloud.succeeded(cloud.detach("vm-1", "external-nat"))
    ip, ptr = cloud.address("a1").address, "mail.example.com."
    first, second = cloud.interfaces("vm-3", there["zone"])
    same((first.name, second.name, len(second.access_configs)), ("nic0", "nic1", 0))
    own = first.access_configs[0].nat_i_p
    for reason, message, config in [
        ("invalid", "publicPtrDomainName", {"public_ptr_domain_name": ptr}),
        ("invalid", "verify ownership", {"public_ptr_domain_name": "unverified.example.", "set_public_ptr": True}),
    ]:
        refusal(exceptions.BadRequest, reason, message, lambda: cloud.attach("vm-3", nat_i_p=ip, **there, **config))
    refusal(
        exceptions.BadRequest, "invalid", "'networkInterface': 'nic2'",
        lambda: cloud.attach("vm-3", nat_i_p=ip, zone=there["zone"], interface="nic2"),
    )
    attached = cloud.attach("vm-3", nat_i_p=ip, public_ptr_domain_name=ptr, set_public_ptr=True, **there)
    cloud.succeeded(attached)
    same(list(cloud.address("a1").users), [attached.target_link])
    first, second = cloud.interfaces("vm-3", there["zone"])
    same(first.access_configs[0].nat_i_p, own)
    config = second.access_configs[0]
    same((config.nat_i_p, config.public_ptr_domain_name, config.set_public_ptr), (ip, ptr, True))
    certified(CLIENT, "instances.addAccessConfig", "on a second interface; PTR record; 400 for a foreign domain")
    certified(CLIENT, "instances.get", "several interfaces; PTR record of an access config")

    cloud.succeeded(cloud.detach("vm-3", zone=there["zone"], interface="nic1"))
    first, second = cloud.interfaces("vm-3", there["zone"])
    same((first.access_configs[0].nat_i_p, len(second.access_configs)), (own, 0))
    same(cloud.address("a1").status, "RESERVED")
    certified(CLIENT, "instances.deleteAccessConfig", "from a second interface; the first one keeps its address")

    filtered = cloud.addresses.aggregated_list(
        request={
            "project": PROJECT, "return_partial_success": True, "filter": f"(address={ip}) OR (address={own})",
        }
    )
    same([item.name for _, scope in filtered for item in scope.addresses], ["a1"])
    certified(CLIENT, "addresses.aggregatedList", "filter by several addresses")
    cloud.succeeded(cloud.attach("vm-1", nat_i_p=ip, name="external-nat"))


def operations(cloud):
    zonal = list(cloud.zone_operations.list(project=PROJECT, zone=ZONE))
    kinds = {operation.operation_type for operation in zonal}
    same(kinds, {"addAccessConfig", "deleteAccessConfig"})
    request = {"project": PROJECT, "zone": ZONE, "order_by": "creationTimestamp desc", "max_results": 2}
    newest = [operation for page in cloud.zone_operations.list(request=request).pages for operation in page.items]
    same([operation.id for operation in newest], sorted((operation.id for operation in zonal), reverse=True))
    attaches = cloud.zone_operations.list(
        request={"project": PROJECT, "zone": ZONE, "filter": "operationType=addAccessConfig"}
    )
    same({operation.operation_type for operation in attaches}, {"addAccessConfig"})
    chosen = {operation.name for operation in zonal[:2]}
    found = cloud.zone_operations.list(
        request={"project": PROJECT, "zone": ZONE, "filter": f'name eq "{"|".join(chosen)}|none"'}
    )
    same({operation.name for operation in found}, chosen)
    certified(CLIENT, "zoneOperations.list", "pages, newest first, filter, several names")

    name = {"project": PROJECT, "zone": ZONE, "operation": zonal[0].name}
    same(cloud.zone_operations.get(**name), zonal[0])
    same(cloud.zone_operations.get(project=PROJECT, zone=ZONE, operation=str(zonal[0].id)), zonal[0])
    refusal(
        exceptions.NotFound, "notFound", f"zones/{ZONE}/operations/none' was not found",
        lambda: cloud.zone_operations.get(project=PROJECT, zone=ZONE, operation="none"),
    )
    certified(CLIENT, "zoneOperations.get", "by name and by ID, the same as listed; 404 for an unknown one")
    same(cloud.zone_operations.wait(**name), zonal[0])
    unfinished = cloud.detach("vm-2", "no such config")
    same(cloud.zone_operations.wait(project=PROJECT, zone=ZONE, operation=unfinished.name).id, unfinished.id)
    certified(CLIENT, "zoneOperations.wait", "done operations; unfinished ones, repeated until done")
    cloud.succeeded(unfinished)

    request = {"project": PROJECT, "return_partial_success": True}
    scopes = dict(cloud.global_operations.aggregated_list(request=request))
    regional = list(scopes[f"regions/{REGION}"].operations)
    same({operation.operation_type for operation in regional}, {"insert", "setLabels", "delete"})
    same(len(scopes[f"zones/{ZONE}"].operations), len(zonal) + 1)
    same(scopes["global"].warning.code, "NO_RESULTS_ON_PAGE")
    certified(CLIENT, "globalOperations.aggregatedList", "the operations of regions and zones, scopes with warnings")

    name = {"project": PROJECT, "region": REGION, "operation": regional[0].name}
    same(cloud.region_operations.get(**name), regional[0])
    refusal(
        exceptions.NotFound, "notFound", f"regions/{REGION}/operations/{zonal[0].name}' was not found",
        lambda: cloud.region_operations.get(project=PROJECT, region=REGION, operation=zonal[0].name),
    )
    certified(CLIENT, "regionOperations.get", "the same as listed; 404 for a zone's operation")
    same(cloud.region_operations.wait(**name), regional[0])
    certified(CLIENT, "regionOperations.wait", "done operations; unfinished ones, repeated until done")


def refusals(cloud):
    """Checks errors that any call can return: for wrong credentials, another project and too many requests."""
    # After a 401 the client gets a new token and retries.
    credentials, before = cloud.addresses.transport._credentials, len(cloud.seen)
    good, credentials.token = credentials.token, "stale"
    same(cloud.address("a1").name, "a1")
    same([response.status_code for response in cloud.seen[before:]], [401, 200])
    same(cloud.seen[before].json()["error"]["errors"][0]["reason"], "authError")
    same(credentials.token, good)
    refusal(
        exceptions.NotFound, "notFound", "The resource 'projects/another' was not found",
        lambda: cloud.addresses.list(project="another", region=REGION),
    )
    certified(CLIENT, "addresses.get", "401 for a wrong token; the client then gets a new one")
    certified(CLIENT, "addresses.list", "404 for another project")

    # The limit is per minute, so the requests of at most two windows exceed it.
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {credentials.token}"
    url = f"{BASE}/compute/v1/projects/{PROJECT}/regions/{REGION}/addresses/a1"
    for _ in range(3001):
        if session.get(url).status_code != 200:
            break
    error = refusal(exceptions.Forbidden, "rateLimitExceeded", "Quota exceeded", lambda: cloud.address("a1"))
    same(error.errors[0]["domain"], "usageLimits")
    certified(CLIENT, "addresses.get", "403 rateLimitExceeded above the rate limit")


def restricted(credentials):
    """Without permissions every call fails, and the error names the permission and the resource."""
    cloud = Cloud(RESTRICTED, credentials)
    project, region, zone = {"project": PROJECT}, {"project": PROJECT, "region": REGION}, {"project": PROJECT, "zone": ZONE}
    in_region, in_zone = f"projects/{PROJECT}/regions/{REGION}", f"projects/{PROJECT}/zones/{ZONE}"
    everywhere, address, instance = f"projects/{PROJECT}", f"{in_region}/addresses/x", f"{in_zone}/instances/x"
    labels = {"labels": {"a": "b"}, "label_fingerprint": "42WmSpB8rSM="}
    calls = {
        "addresses.aggregatedList": ("addresses.list", everywhere, lambda: cloud.addresses.aggregated_list(**project)),
        "addresses.list": ("addresses.list", everywhere, lambda: cloud.addresses.list(**region)),
        "addresses.get": ("addresses.get", address, lambda: cloud.address("x")),
        "addresses.insert": (
            "addresses.create", everywhere,
            lambda: cloud.addresses.insert_unary(address_resource=compute_v1.Address(name="x"), **region),
        ),
        "addresses.delete": (
            "addresses.delete", address, lambda: cloud.addresses.delete_unary(address="x", **region)
        ),
        "addresses.setLabels": (
            "addresses.setLabels", address,
            lambda: cloud.addresses.set_labels_unary(
                resource="x", region_set_labels_request_resource=labels, **region
            ),
        ),
        "instances.get": ("instances.get", instance, lambda: cloud.instances.get(instance="x", **zone)),
        "instances.list": ("instances.list", everywhere, lambda: cloud.instances.list(**zone)),
        "instances.aggregatedList": ("instances.list", everywhere, lambda: cloud.instances.aggregated_list(**project)),
        "instances.addAccessConfig": ("instances.addAccessConfig", instance, lambda: cloud.attach("x")),
        "instances.deleteAccessConfig": ("instances.deleteAccessConfig", instance, lambda: cloud.detach("x")),
        "zoneOperations.get": (
            "zoneOperations.get", f"{in_zone}/operations/x",
            lambda: cloud.zone_operations.get(operation="x", **zone),
        ),
        "zoneOperations.wait": (
            "zoneOperations.get", f"{in_zone}/operations/x",
            lambda: cloud.zone_operations.wait(operation="x", **zone),
        ),
        "zoneOperations.list": ("zoneOperations.list", everywhere, lambda: cloud.zone_operations.list(**zone)),
        "regionOperations.get": (
            "regionOperations.get", f"{in_region}/operations/x",
            lambda: cloud.region_operations.get(operation="x", **region),
        ),
        "regionOperations.wait": (
            "regionOperations.get", f"{in_region}/operations/x",
            lambda: cloud.region_operations.wait(operation="x", **region),
        ),
        "globalOperations.aggregatedList": (
            "globalOperations.list", everywhere, lambda: cloud.global_operations.aggregated_list(**project)
        ),
    }
    for route, (permission, resource, call) in calls.items():
        message = f"Required 'compute.{permission}' permission for '{resource}'"
        refusal(exceptions.Forbidden, "forbidden", message, call)
        certified(CLIENT, route, f"403 forbidden without compute.{permission}")
    same(sorted(calls), sorted(DISCOVERY.checked))


def main():
    credentials = metadata()
    cloud = Cloud(BASE, credentials)
    instances(cloud)
    addresses(cloud)
    access_configs(cloud)
    interfaces_and_ptr(cloud)
    operations(cloud)
    refusals(cloud)
    if RESTRICTED:
        restricted(credentials)


if __name__ == "__main__":
    main()
