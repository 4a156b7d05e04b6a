"""Makes every call of the fake EC2, Route 53 and STS with the vendor's own client, and fails if they disagree.

Usage: aws.py EC2_URL ROUTE53_URL STS_URL KEY_ID

The EC2 account must be new. It has the instances i-1 (with two interfaces) and i-2, and the address 203.0.113.10, all
in us-east-1. The Route 53 account has the empty zone example.com. STS issues KEY_ID for the token "proof".

Out: one line for each call: the service, the call's name and what was checked, separated by tabs. The program stops at
the first disagreement, with a traceback and a nonzero exit status.

The client parses each response with the vendor's model of the service, and drops fields that the model lacks. So this
script checks only fields that the model has.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config
from botocore.credentials import ContainerProvider
from botocore.exceptions import ClientError
from botocore.utils import InstanceMetadataFetcher

ADDRESS = "203.0.113.10"
BURST = 50


class Certification:
    """A client of the vendor. Prints one line for each call that it agreed with."""

    def __init__(self, service, url, key):
        # Retries would hide the errors that this script expects.
        self.service = service
        self.client = boto3.client(
            service,
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key="secret",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def line(self, name, what):
        print(self.service, name, what, sep="\t", flush=True)

    def operation(self, name):
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
        return getattr(self.client, snake)

    def call(self, name, what, **kwargs):
        answer = self.operation(name)(**kwargs)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        self.line(name, f"200, {what}")
        return answer

    def refused(self, name, what, status, code, **kwargs):
        try:
            self.operation(name)(**kwargs)
        except ClientError as error:
            found = (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"])
            assert found == (status, code), f"{name}: {found}"
            self.line(name, f"{status} {code}, {what}")
            return
        raise AssertionError(f"{name} did not fail: {what}")


def interface_of(ec2, instance):
    answer = ec2.call("DescribeInstances", f"the interfaces of {instance}", InstanceIds=[instance])
    (found,) = answer["Reservations"][0]["Instances"]
    assert found["InstanceId"] == instance and found["State"] == {"Code": 16, "Name": "running"}
    (first,) = [each for each in found["NetworkInterfaces"] if each["Attachment"]["DeviceIndex"] == 0]
    return first


def certify_ec2(ec2):
    one, two = interface_of(ec2, "i-1"), interface_of(ec2, "i-2")
    assert one["Association"]["IpOwnerId"] == "amazon" and "Association" not in two
    page = ec2.call("DescribeInstances", "a page of one", MaxResults=1)
    assert page["NextToken"]
    ec2.refused("DescribeInstances", "an unknown instance", 400, "InvalidInstanceID.NotFound", InstanceIds=["i-9"])
    public = [{"Name": "public-ip", "Values": [ADDRESS]}]
    (address,) = ec2.call("DescribeAddresses", "by its address", Filters=public)["Addresses"]
    assert address["Domain"] == "vpc" and "AssociationId" not in address
    allocation = address["AllocationId"]
    wanted = {"AllocationId": allocation, "AllowReassociation": False}
    ec2.refused("AssociateAddress", "a dry run", 412, "DryRunOperation", DryRun=True, NetworkInterfaceId=one["NetworkInterfaceId"], **wanted)
    ec2.refused("AssociateAddress", "an instance with two interfaces", 400, "InvalidInstanceID", InstanceId="i-1", **wanted)
    made = ec2.call("AssociateAddress", "on the first interface", NetworkInterfaceId=one["NetworkInterfaceId"], **wanted)
    again = ec2.call("AssociateAddress", "the same again", NetworkInterfaceId=one["NetworkInterfaceId"], **wanted)
    assert made["AssociationId"] == again["AssociationId"]
    ec2.refused("AssociateAddress", "another interface holds it", 400, "Resource.AlreadyAssociated", NetworkInterfaceId=two["NetworkInterfaceId"], **wanted)
    (address,) = ec2.call("DescribeAddresses", "its holder", AllocationIds=[allocation])["Addresses"]
    assert (address["InstanceId"], address["NetworkInterfaceId"]) == ("i-1", one["NetworkInterfaceId"])
    assert interface_of(ec2, "i-1")["Association"]["PublicIp"] == ADDRESS
    ec2.refused("ReleaseAddress", "an address in use", 400, "InvalidIPAddress.InUse", AllocationId=allocation)
    ec2.call("DisassociateAddress", "by its association", AssociationId=made["AssociationId"])
    ec2.call("DisassociateAddress", "a second time", AssociationId=made["AssociationId"])
    ec2.refused("DisassociateAddress", "an unknown association", 400, "InvalidAssociationID.NotFound", AssociationId="eipassoc-0")
    ec2.call("ModifyNetworkInterfaceAttribute", "an ephemeral address", NetworkInterfaceId=one["NetworkInterfaceId"], AssociatePublicIpAddress=True)
    assert interface_of(ec2, "i-1")["Association"]["IpOwnerId"] == "amazon"
    ec2.call("ReleaseAddress", "a free address", AllocationId=allocation)
    ec2.refused("DescribeAddresses", "a released address", 400, "InvalidAllocationID.NotFound", AllocationIds=[allocation])
    tags = [{"Key": "ip-address-controller", "Value": "pool"}]
    new = ec2.call("AllocateAddress", "with a tag", Domain="vpc", TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}])
    (address,) = ec2.call("DescribeAddresses", "its tag", AllocationIds=[new["AllocationId"]])["Addresses"]
    assert address["Tags"] == tags and address["PublicIp"] == new["PublicIp"]
    certify_limit(ec2)


def certify_limit(ec2):
    """Sends many requests at once: at least one burst succeeds, and the others fail with the vendor's error."""

    def allocate(_):
        try:
            ec2.client.allocate_address(Domain="vpc")
            return None
        except ClientError as error:
            return (error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"])

    with ThreadPoolExecutor(16) as pool:
        refused = [answer for answer in pool.map(allocate, range(6 * BURST)) if answer]
    assert refused and set(refused) == {(503, "RequestLimitExceeded")}, refused
    assert len(refused) <= 5 * BURST, len(refused)
    ec2.line("AllocateAddress", f"503 RequestLimitExceeded, more than {BURST} at once")


def change(action, kind, ttl, values, name="www.example.com"):
    records = [{"Value": value} for value in values]
    return {"Action": action, "ResourceRecordSet": {"Name": name, "Type": kind, "TTL": ttl, "ResourceRecords": records}}


def certify_route53(names):
    answer = names.call("ListHostedZonesByName", "by its name", DNSName="example.com")
    (zone,) = [zone for zone in answer["HostedZones"] if zone["Name"] == "example.com."]
    assert zone["Config"] == {"PrivateZone": False}
    zone = zone["Id"].removeprefix("/hostedzone/")

    def batch(*changes):
        return {"HostedZoneId": zone, "ChangeBatch": {"Changes": list(changes)}}

    time.sleep(2)
    one, two = ["203.0.113.1"], ["203.0.113.2", "203.0.113.3"]
    call = "ChangeResourceRecordSets"
    names.call(call, "CREATE", **batch(change("CREATE", "A", 60, one)))
    names.call(call, "DELETE and CREATE at once", **batch(change("DELETE", "A", 60, one), change("CREATE", "A", 60, two)))
    for what, refused in [
        ("CREATE of an existing record", change("CREATE", "A", 60, one)),
        ("DELETE of other values", change("DELETE", "A", 60, one)),
        ("DELETE with another TTL", change("DELETE", "A", 61, two)),
    ]:
        names.refused(call, what, 400, "InvalidChangeBatch", **batch(refused))
    # The limit is five requests per second, and six were made.
    time.sleep(2)
    found = names.call("ListResourceRecordSets", "starting at a name", HostedZoneId=zone, StartRecordName="www.example.com", StartRecordType="A", MaxItems="1")
    (found,) = found["ResourceRecordSets"]
    assert (found["Name"], found["TTL"]) == ("www.example.com.", 60)
    assert [record["Value"] for record in found["ResourceRecords"]] == two


def certify_credentials(sts, url, key):
    role = {"RoleArn": "arn:aws:iam::123456789012:role/controller", "RoleSessionName": "test"}
    call = "AssumeRoleWithWebIdentity"
    found = sts.call(call, "credentials of a role", WebIdentityToken="proof", **role)
    assert found["Credentials"]["AccessKeyId"] == key
    sts.refused(call, "a wrong token", 400, "InvalidIdentityToken", WebIdentityToken="another", **role)

    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "proof"}
    assert ContainerProvider(environ=environment).load().access_key == key
    sts.line("podIdentity.credentials", "credentials of a role")

    found = InstanceMetadataFetcher(base_url=f"{url}/").retrieve_iam_role_credentials()
    assert (found["role_name"], found["access_key"]) == ("node", key)
    for name in ["instance.token", "instance.role", "instance.credentials"]:
        sts.line(name, "credentials of the instance's role")


def main():
    ec2_url, route53_url, sts_url, key = sys.argv[1:]
    certify_credentials(Certification("sts", sts_url, key), sts_url, key)
    certify_ec2(Certification("ec2", ec2_url, key))
    certify_route53(Certification("route53", route53_url, key))


if __name__ == "__main__":
    main()
