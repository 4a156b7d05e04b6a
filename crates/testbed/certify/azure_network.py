"""Certifies the fakes of Azure Resource Manager, Entra ID and managed identities with Azure's own clients.

    azure_network.py URL ENTRA_URL RESTRICTED_URL CERTIFICATE

URL serves the subscription `certified` with the resource group `Group`. In westeurope it has the VMs `one`, `two`
(stopped) and `three`, and the free addresses `first` (203.0.113.1) and `second`. In eastus it has the free address
`far`. Pages have two items. ENTRA_URL issues the token that URL accepts: to the client `client` of the tenant `tenant`,
whose secret and federated token are both `secret`, and to a VM's managed identity. RESTRICTED_URL serves the same
subscription but denies every action. All servers use TLS with CERTIFICATE.

Every call goes through azure-mgmt-network or azure-mgmt-compute, with credentials from azure-identity. A response must
not have a property that the clients' models lack, at any depth, or a value of another type.

Out: one line for each check: package, call and what was checked, separated by tabs. The program stops at the first
failure, with a nonzero exit status.
"""

import os
import sys
import tempfile
import typing
from collections.abc import MutableMapping

URL, ENTRA, RESTRICTED, CERTIFICATE = sys.argv[1:]
# The libraries read these. All traffic stays on loopback.
os.environ.update(REQUESTS_CA_BUNDLE=CERTIFICATE, NO_PROXY="*", AZURE_POD_IDENTITY_AUTHORITY_HOST=ENTRA)

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.identity import (
    ClientSecretCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.compute import models as compute_models
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.network import models as network_models

NETWORK, COMPUTE, IDENTITY = "azure-mgmt-network", "azure-mgmt-compute", "azure-identity"
NETWORK_API, COMPUTE_API = "2024-05-01", "2024-07-01"
GROUP, LOCATION = "Group", "westeurope"
SCOPE = "https://management.azure.com/.default"


def certified(package, route, what):
    print(package, route, what, sep="\t", flush=True)


def same(found, expected):
    assert found == expected, f"found {found!r} instead of {expected!r}"


def check_shape(model, value, where):
    """Checks that a value has no property that the model lacks, at any depth, and no value of another type."""
    model({})  # A model initializes its fields when it is first used.
    fields = {field._rest_name: field for field in model._attr_to_rest_field.values()}
    module = sys.modules[model.__module__]
    hints = typing.get_type_hints(model, vars(module) | {"_models": sys.modules[module.__package__]})
    names = {field._rest_name: name for name, field in model._attr_to_rest_field.items()}
    for key, inner in value.items():
        assert key in fields, f"{where} has {key}, which the vendor does not document"
        check_value(hints[names[key]], inner, f"{where}.{key}")


def check_value(hint, value, where):
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is typing.Union:
        arguments = [argument for argument in arguments if argument is not type(None)]
        errors = []
        for argument in arguments:
            try:
                return check_value(argument, value, where)
            except AssertionError as error:
                errors.append(str(error))
        raise AssertionError("; ".join(errors))
    if origin is list:
        assert isinstance(value, list), f"{where} is not a list: {value!r}"
        for number, inner in enumerate(value):
            check_value(arguments[0], inner, f"{where}[{number}]")
    elif origin is dict:
        assert isinstance(value, dict), f"{where} is not an object: {value!r}"
        for name, inner in value.items():
            check_value(arguments[1], inner, f"{where}.{name}")
    elif isinstance(hint, type) and issubclass(hint, MutableMapping):
        assert isinstance(value, dict), f"{where} is not an object: {value!r}"
        check_shape(hint, value, where)
    elif isinstance(hint, type) and issubclass(hint, str) and hint is not str:
        assert value in [one.value for one in hint], f"{where} is not a value of the enum: {value!r}"
    elif hint in (str, int, bool):
        assert type(value) is hint, f"{where} is not of type {hint.__name__}: {value!r}"


class Cloud:
    """The vendor's clients for one server, and the responses that they received."""

    def __init__(self, url, credential):
        # Retries would hide the errors that this script expects.
        options = {
            "base_url": url,
            "credential_scopes": [SCOPE],
            "retry_total": 0,
            "raw_response_hook": self.see,
            "polling_interval": 1,
        }
        network = NetworkManagementClient(credential, "certified", api_version=NETWORK_API, **options)
        compute = ComputeManagementClient(credential, "certified", api_version=COMPUTE_API, **options)
        self.seen = []
        self.addresses, self.interfaces = network.public_ip_addresses, network.network_interfaces
        self.machines = compute.virtual_machines

    def see(self, response):
        self.seen.append(response.http_response)

    def bodies(self, part):
        """The bodies of all successful responses to requests whose URL contains `part`."""
        return [
            answer.json()
            for answer in self.seen
            if part in answer.request.url and answer.status_code in (200, 201) and answer.body()
        ]


def refused(status, code, message, call):
    """Makes a call that must fail, and checks the exception, the code and the message."""
    try:
        result = call()
        if hasattr(result, "result"):
            result.result()
        elif hasattr(result, "__iter__"):
            list(result)
    except HttpResponseError as error:
        same(error.status_code, status)
        same(error.error.code, code)
        assert message in error.error.message, error.error.message
        return error
    raise AssertionError(f"the call did not fail with {code}")


def identities():
    """Gets a token in each supported way, with the vendor's own library."""
    options = {"authority": ENTRA, "disable_instance_discovery": True, "retry_total": 0}
    secret = ClientSecretCredential("tenant", "client", "secret", **options)
    token = secret.get_token(SCOPE)
    certified(IDENTITY, "entra.openidConfiguration", "the library finds the token endpoint")
    certified(IDENTITY, "entra.token", "a token for a client secret")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("secret")
        file.flush()
        workload = WorkloadIdentityCredential(
            tenant_id="tenant", client_id="client", token_file_path=file.name, **options
        )
        same(workload.get_token(SCOPE).token, token.token)
    certified(IDENTITY, "entra.token", "the same token for a federated token")
    wrong = ClientSecretCredential("tenant", "client", "wrong", **options)
    try:
        wrong.get_token(SCOPE)
        raise AssertionError("a wrong secret was accepted")
    except ClientAuthenticationError as error:
        assert "AADSTS7000215" in error.message, error.message
    certified(IDENTITY, "entra.token", "AADSTS7000215 for a wrong secret")
    managed = ManagedIdentityCredential(client_id="client")
    same(managed.get_token(SCOPE).token, token.token)
    certified(IDENTITY, "managedIdentity.token", "a managed identity, by its client ID")
    return secret


def listings(cloud):
    names = sorted(address.name for address in cloud.addresses.list_all())
    same(names, ["far", "first", "second"])
    pages = cloud.bodies("publicIPAddresses")
    same([len(page["value"]) for page in pages], [2, 1])
    assert "nextLink" in pages[0] and "nextLink" not in pages[1]
    for page in pages:
        for item in page["value"]:
            check_shape(network_models.PublicIPAddress, item, "PublicIPAddresses_ListAll")
    certified(NETWORK, "PublicIPAddresses_ListAll", "200, both pages, valid by the client's models")
    interfaces = list(cloud.interfaces.list_all())
    same(sorted(interface.name for interface in interfaces), ["one-nic", "three-nic", "two-nic"])
    for page in cloud.bodies("networkInterfaces"):
        for item in page["value"]:
            check_shape(network_models.NetworkInterface, item, "NetworkInterfaces_ListAll")
    one = next(interface for interface in interfaces if interface.name == "one-nic")
    assert one.virtual_machine.id.endswith("/virtualMachines/one") and one.primary is True
    certified(NETWORK, "NetworkInterfaces_ListAll", "200, both pages, the VM of each, valid by the client's models")
    machines = {machine.name: machine for machine in cloud.machines.list_all(status_only="true")}
    same(sorted(machines), ["one", "three", "two"])
    for page in cloud.bodies("virtualMachines"):
        for item in page["value"]:
            check_shape(compute_models.VirtualMachine, item, "VirtualMachines_ListAll")
    power = {
        name: [status.code for status in machine.instance_view.statuses if status.code.startswith("PowerState/")]
        for name, machine in machines.items()
    }
    same(power, {"one": ["PowerState/running"], "two": ["PowerState/deallocated"], "three": ["PowerState/running"]})
    certified(COMPUTE, "VirtualMachines_ListAll", "200, both pages, power states, valid by the client's models")
    assert all(machine.instance_view is None for machine in cloud.machines.list_all())
    certified(COMPUTE, "VirtualMachines_ListAll", "200, no power states unless requested")


def moves(cloud):
    address = cloud.addresses.get(GROUP, "first")
    check_shape(network_models.PublicIPAddress, cloud.seen[-1].json(), "PublicIPAddresses_Get")
    same((address.ip_address, address.location, address.ip_configuration), ("203.0.113.1", LOCATION, None))
    same((address.sku.name, address.public_ip_allocation_method), ("Standard", "Static"))
    certified(NETWORK, "PublicIPAddresses_Get", "200, valid by the client's models")
    same(cloud.addresses.get(GROUP.upper(), "FIRST").id, address.id)
    certified(NETWORK, "PublicIPAddresses_Get", "200, names in another case")
    refused(404, "ResourceNotFound", "'Microsoft.Network/publicIPAddresses/none'", lambda: cloud.addresses.get(GROUP, "none"))
    certified(NETWORK, "PublicIPAddresses_Get", "404, ResourceNotFound")

    interface = cloud.interfaces.get(GROUP, "one-nic")
    read = cloud.seen[-1].json()
    check_shape(network_models.NetworkInterface, read, "NetworkInterfaces_Get")
    certified(NETWORK, "NetworkInterfaces_Get", "200, valid by the client's models")
    refused(404, "ResourceNotFound", "was not found", lambda: cloud.interfaces.get(GROUP, "none"))
    certified(NETWORK, "NetworkInterfaces_Get", "404, ResourceNotFound")

    primary = next(configuration for configuration in interface.ip_configurations if configuration.primary)
    primary.public_ip_address = network_models.PublicIPAddress(id=address.id)
    before = len(cloud.seen)
    write = cloud.interfaces.begin_create_or_update
    poller = write(GROUP, "one-nic", interface, headers={"If-Match": interface.etag})
    started = cloud.seen[before]
    same(started.status_code, 200)
    same(started.json()["properties"]["provisioningState"], "Updating")
    assert int(started.headers["Retry-After"]) > 0
    assert int(started.headers["x-ms-ratelimit-remaining-subscription-writes"]) < 200
    refused(409, "AnotherOperationInProgress", "in progress", lambda: write(GROUP, "one-nic", interface))
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "409, AnotherOperationInProgress, during another one")
    attached = poller.result()
    same(attached.provisioning_state, "Succeeded")
    polls = [answer for answer in cloud.seen[before:] if "/operations/" in answer.request.url]
    same([answer.json()["status"] for answer in polls][-1], "Succeeded")
    assert polls[0].request.url == started.headers["Azure-AsyncOperation"]
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "200, an address attached, with the current etag")
    certified(NETWORK, "Operations_Get", "200, the client's own polling by Azure-AsyncOperation")
    holder = cloud.addresses.get(GROUP, "first").ip_configuration
    assert holder.id.endswith("/networkInterfaces/one-nic/ipConfigurations/primary"), holder.id
    same(attached.network_security_group.id, interface.network_security_group.id)

    stale = lambda: write(GROUP, "one-nic", interface, headers={"If-Match": interface.etag})
    refused(412, "PreconditionFailed", "does not match", stale)
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "412, PreconditionFailed, with a stale etag")

    other = cloud.interfaces.get(GROUP, "two-nic")
    link = next(configuration for configuration in other.ip_configurations if configuration.primary)
    link.public_ip_address = network_models.PublicIPAddress(id=address.id)
    refused(400, "PublicIPAddressInUse", "already allocated to resource", lambda: write(GROUP, "two-nic", other))
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "400, PublicIPAddressInUse")
    link.public_ip_address = network_models.PublicIPAddress(id=address.id.replace("/first", "/far"))
    refused(400, "InvalidResourceReference", "in the same region", lambda: write(GROUP, "two-nic", other))
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "400, InvalidResourceReference, in another region")
    delete = cloud.addresses.begin_delete
    refused(400, "PublicIPAddressCannotBeDeleted", "still allocated to", lambda: delete(GROUP, "first"))
    certified(NETWORK, "PublicIPAddresses_Delete", "400, PublicIPAddressCannotBeDeleted")

    next(found for found in attached.ip_configurations if found.primary).public_ip_address = None
    same(write(GROUP, "one-nic", attached).result().provisioning_state, "Succeeded")
    same(cloud.addresses.get(GROUP, "first").ip_configuration, None)
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "200, the address detached")

    slim = cloud.interfaces.get(GROUP, "three-nic")
    slim.network_security_group = None
    same(write(GROUP, "three-nic", slim).result().network_security_group, None)
    certified(NETWORK, "NetworkInterfaces_CreateOrUpdate", "200, omitted properties are removed")


def creations(cloud):
    request = network_models.PublicIPAddress(
        location=LOCATION,
        tags={"ip-address-controller": "pool"},
        sku=network_models.PublicIPAddressSku(name="Standard"),
        public_ip_allocation_method="Static",
    )
    before = len(cloud.seen)
    poller = cloud.addresses.begin_create_or_update(GROUP, "made", request)
    started = cloud.seen[before]
    same((started.status_code, started.json()["properties"].get("ipAddress")), (201, None))
    made = poller.result()
    assert made.ip_address and made.tags == {"ip-address-controller": "pool"}
    certified(NETWORK, "PublicIPAddresses_CreateOrUpdate", "201, without an IP address until the operation ends")
    again = cloud.addresses.begin_create_or_update(GROUP, "made", request).result()
    same(again.ip_address, made.ip_address)
    certified(NETWORK, "PublicIPAddresses_CreateOrUpdate", "200, the same request again returns the same address")
    before = len(cloud.seen)
    cloud.addresses.begin_delete(GROUP, "made").result()
    same(cloud.seen[before].status_code, 202)
    try:
        cloud.addresses.get(GROUP, "made")
        raise AssertionError("a deleted address still exists")
    except ResourceNotFoundError:
        pass
    cloud.addresses.begin_delete(GROUP, "made").result()
    same(cloud.seen[-1].status_code, 204)
    certified(NETWORK, "PublicIPAddresses_Delete", "202, and 204 if it does not exist")


def denials(credential, allowed):
    """Without permissions every call fails, and the error names the missing action."""
    cloud = Cloud(RESTRICTED, credential)
    interface = allowed.interfaces.get(GROUP, "one-nic")
    request = network_models.PublicIPAddress(location=LOCATION)
    calls = {
        "PublicIPAddresses_ListAll": ("publicIPAddresses/read", lambda: cloud.addresses.list_all()),
        "PublicIPAddresses_Get": ("publicIPAddresses/read", lambda: cloud.addresses.get(GROUP, "first")),
        "PublicIPAddresses_CreateOrUpdate": (
            "publicIPAddresses/write", lambda: cloud.addresses.begin_create_or_update(GROUP, "x", request)
        ),
        "PublicIPAddresses_Delete": ("publicIPAddresses/delete", lambda: cloud.addresses.begin_delete(GROUP, "first")),
        "NetworkInterfaces_ListAll": ("networkInterfaces/read", lambda: cloud.interfaces.list_all()),
        "NetworkInterfaces_Get": ("networkInterfaces/read", lambda: cloud.interfaces.get(GROUP, "one-nic")),
        "NetworkInterfaces_CreateOrUpdate": (
            "networkInterfaces/write",
            lambda: cloud.interfaces.begin_create_or_update(GROUP, "one-nic", interface),
        ),
    }
    for route, (action, call) in calls.items():
        refused(403, "AuthorizationFailed", f"perform action 'Microsoft.Network/{action}'", call)
        certified(NETWORK, route, f"403, AuthorizationFailed, names {action}")
    refused(
        403, "AuthorizationFailed", "'Microsoft.Compute/virtualMachines/read'", lambda: cloud.machines.list_all()
    )
    certified(COMPUTE, "VirtualMachines_ListAll", "403, AuthorizationFailed, names virtualMachines/read")


def throttling(cloud):
    for number in range(300):
        try:
            cloud.addresses.begin_delete(GROUP, f"none-{number}").result()
        except HttpResponseError as error:
            same((error.status_code, error.error.code), (429, "TooManyRequests"))
            assert int(error.response.headers["Retry-After"]) > 0
            certified(NETWORK, "PublicIPAddresses_Delete", "429, TooManyRequests, with Retry-After")
            return
    raise AssertionError("300 writes at once were not throttled")


def main():
    credential = identities()
    cloud = Cloud(URL, credential)
    listings(cloud)
    moves(cloud)
    creations(cloud)
    denials(credential, cloud)
    throttling(cloud)


main()
