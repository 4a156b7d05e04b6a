"""Makes every call of the fake Cloudflare with the vendor's own client, and fails if the two disagree.

Usage: cloudflare_dns.py BASE_URL TOKEN

The account must be new and must enforce the real rate limits. It has the empty zone example.com and 20 other zones.

Out: one line for each call: "cloudflare", the call's name and what was checked, separated by tabs. The program stops at
the first disagreement, with a traceback and a nonzero exit status.

The client validates every response strictly against its own models: required fields must be present, and each value
must have the right type. In addition, a response must not have fields that the model lacks.
"""

import sys

import httpx
from cloudflare import (
    AuthenticationError,
    BadRequestError,
    Cloudflare,
    NotFoundError,
    RateLimitError,
)
from cloudflare._models import BaseModel

NAME = "www.example.com"
REQUESTS_MAX = 1200
WINDOW_SECONDS = 300
BATCH_CHANGES_MAX = 200


class Certification:
    """The vendor's client. Prints one line for each call that it agreed with."""

    def __init__(self, base_url, token):
        self.base_url = base_url
        self.sent = 0
        self.client = self.client_with(token)

    def client_with(self, token):
        http_client = httpx.Client(event_hooks={"request": [self.count]})
        # Retries would hide the errors that this script expects.
        return Cloudflare(
            api_token=token,
            base_url=self.base_url,
            max_retries=0,
            http_client=http_client,
            _strict_response_validation=True,
        )

    def count(self, _request):
        self.sent += 1

    def line(self, route, what):
        print("cloudflare", route, what, sep="\t", flush=True)

    def operation(self, route, client=None):
        *groups, name = route.split(".")
        resource = client or self.client
        for group in groups:
            resource = getattr(resource, group)
        return getattr(resource.with_raw_response, name)

    def call(self, route, what, **kwargs):
        """Makes a call by its name, checks its envelope, headers and shape, and returns the parsed response."""
        raw = self.operation(route)(**kwargs)
        assert raw.status_code == 200, f"{route}: {raw.status_code}"
        envelope = raw.json()
        assert envelope["success"] is True and envelope["errors"] == envelope["messages"] == [], envelope
        check_rate_headers(raw.headers, self.sent)
        parsed = raw.parse()
        if route.endswith(".list"):
            check_pages(envelope)
            for entry in parsed.result:
                check_known(entry, route)
        else:
            check_known(parsed, route)
        self.line(route, f"200, valid by the client's models, {what}")
        return parsed

    def refused(self, route, what, error_type, code, client=None, **kwargs):
        """Makes a call that must fail, and checks the exception that the client raises."""
        try:
            self.operation(route, client)(**kwargs)
        except error_type as error:
            assert type(error) is error_type, f"{route}: {type(error)}, not {error_type}"
            assert [problem.code for problem in error.errors] == [code], f"{route}: {error.errors}"
            assert set(error.body) == {"success", "errors", "messages", "result"}, error.body
            assert error.body["success"] is False and error.body["result"] is None, error.body
            self.line(route, f"{error.status_code}, {error_type.__name__} with code {code}, {what}")
            return error
        raise AssertionError(f"{route}: {what} did not fail")


def check_known(value, path):
    """Checks that a response has no field that the client's model lacks, at any depth."""
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{path} has {value.model_extra}, which the vendor does not document"
        for field in type(value).model_fields:
            check_known(getattr(value, field), f"{path}.{field}")
    elif isinstance(value, list):
        for entry in value:
            check_known(entry, path)


def check_pages(envelope):
    info = envelope["result_info"]
    assert set(info) == {"page", "per_page", "count", "total_count", "total_pages"}, info
    assert info["count"] == len(envelope["result"]) <= info["per_page"], info
    assert info["total_pages"] == -(-info["total_count"] // info["per_page"]), info


def check_rate_headers(headers, sent):
    name, left, resets = headers["ratelimit"].split(";")
    assert name == '"default"' and left == f"r={REQUESTS_MAX - sent}", headers["ratelimit"]
    assert 0 < int(resets.removeprefix("t=")) <= WINDOW_SECONDS, headers["ratelimit"]
    assert headers["ratelimit-policy"] == f'"default";q={REQUESTS_MAX};w={WINDOW_SECONDS}', headers["ratelimit-policy"]


def contents(page):
    return sorted(record.content for record in page.result)


def certify_zones(cert):
    page = cert.call("zones.list", "page 1 of 2 by default")
    assert len(page.result) == 20 and page.result_info.page == 1 and page.result_info.per_page == 20
    rest = cert.call("zones.list", "page 2 of 2", page=2)
    names = [zone.name for zone in page.result + rest.result]
    assert len(set(names)) == len(names) == 21
    page = cert.call("zones.list", "at most 50 a page", per_page=1000)
    assert page.result_info.per_page == 50 and len(page.result) == 21
    assert cert.call("zones.list", "a name without a zone", name=NAME).result == []
    [zone] = cert.call("zones.list", "by name", name="example.com").result
    assert zone.name == "example.com" and zone.status == "active" and len(zone.id) == 32
    assert zone.plan.legacy_id == "free"
    return zone.id


def certify_single_records(cert, zone):
    request = {"zone_id": zone, "type": "A", "name": NAME, "content": "203.0.113.1", "ttl": 60}
    record = cert.call("dns.records.create", "an A record with a comment", comment="Ours", **request)
    assert (record.name, record.type, record.content, record.ttl) == (NAME, "A", "203.0.113.1", 60)
    assert record.comment == "Ours" and record.comment_modified_on is not None
    assert record.proxied is False and record.proxiable is True and record.tags == []
    assert record.created_on == record.modified_on and len(record.id) == 32
    ids = {"zone_id": zone, "dns_record_id": record.id}
    assert cert.call("dns.records.get", "the same as at creation", **ids) == record

    for what, parts, code in [
        ("the same again", {}, 81058),
        ("the same with another TTL", {"ttl": 300}, 81058),
        ("a CNAME beside it", {"type": "CNAME", "content": "example.net"}, 81053),
        ("an A record without an IPv4 address", {"content": "2001:db8::1"}, 9005),
        ("an AAAA record without an IPv6 address", {"type": "AAAA"}, 9006),
        ("a TTL of 30 seconds", {"content": "203.0.113.9", "ttl": 30}, 9021),
        ("a TTL of more than a day", {"content": "203.0.113.9", "ttl": 86401}, 9021),
        ("a comment of 101 characters", {"content": "203.0.113.9", "comment": "x" * 101}, 9313),
        ("a tag", {"content": "203.0.113.9", "tags": ["owner:us"]}, 9300),
        ("a proxied TXT", {"type": "TXT", "proxied": True}, 9004),
        ("a proxied private address", {"content": "10.0.0.1", "proxied": True}, 9003),
    ]:
        cert.refused("dns.records.create", what, BadRequestError, code, **(request | parts))
    alias = {"zone_id": zone, "type": "CNAME", "name": "alias", "content": NAME, "ttl": 1}
    alias = cert.call("dns.records.create", "a CNAME with a relative name", **alias)
    assert alias.name == "alias.example.com" and alias.ttl == 1
    args = ("dns.records.create", "an A record beside a CNAME", BadRequestError, 81054)
    cert.refused(*args, **(request | {"name": alias.name}))

    request = {"type": "A", "name": NAME, "ttl": 60, "content": "203.0.113.2"}
    edited = cert.call("dns.records.edit", "a new address; other fields unchanged", **ids, **request)
    assert edited.content == "203.0.113.2" and edited.comment == "Ours" and edited.id == record.id
    assert edited.created_on == record.created_on and edited.modified_on > record.modified_on
    assert edited.comment_modified_on == record.comment_modified_on
    proxied = cert.call("dns.records.edit", "proxied, with automatic TTL", **ids, **request, proxied=True)
    assert proxied.proxied is True and proxied.ttl == 1
    replaced = cert.call("dns.records.update", "omitted fields are reset", **ids, **request)
    assert (replaced.content, replaced.ttl) == ("203.0.113.2", 60)
    assert replaced.comment is None and replaced.comment_modified_on is None and replaced.proxied is False
    assert cert.call("dns.records.get", "as changed", **ids) == replaced

    for route in ["dns.records.edit", "dns.records.update"]:
        cert.refused(route, "a bad address", BadRequestError, 9005, **ids, **(request | {"content": "x"}))
    deleted = cert.call("dns.records.delete", "returns its ID", **ids)
    assert deleted.id == record.id
    for route, parts in [
        ("dns.records.get", {}),
        ("dns.records.edit", request),
        ("dns.records.update", request),
        ("dns.records.delete", {}),
    ]:
        cert.refused(route, "a deleted record", NotFoundError, 81044, **ids, **parts)
    cert.call("dns.records.delete", "the CNAME", zone_id=zone, dns_record_id=alias.id)


def certify_batches(cert, zone):
    posts = [
        {"type": "A", "name": NAME, "content": f"198.51.100.{host}", "ttl": 60, "comment": "Ours"}
        for host in range(BATCH_CHANGES_MAX)
    ]
    sent = cert.sent
    batch = cert.call("dns.records.batch", f"{BATCH_CHANGES_MAX} new records in one request", zone_id=zone, posts=posts)
    assert cert.sent == sent + 1
    assert [record.content for record in batch.posts] == [post["content"] for post in posts]
    assert batch.deletes is batch.patches is batch.puts is None
    one, two, three = batch.posts[:3]

    extra = [{"type": "A", "name": NAME, "content": "203.0.113.1", "ttl": 60}]
    # The vendor has no specific error code for this.
    args = ("dns.records.batch", f"more than {BATCH_CHANGES_MAX} changes", BadRequestError, 1004)
    deletes = [{"id": record.id} for record in batch.posts]
    cert.refused(*args, zone_id=zone, deletes=deletes, posts=extra)

    # Each change uses the address that the previous one freed, so no other order works.
    parts = {"type": "A", "name": NAME, "ttl": 60}
    batch = cert.call(
        "dns.records.batch",
        "deletes, patches, puts and posts, in this order",
        zone_id=zone,
        posts=[parts | {"content": three.content}],
        puts=[parts | {"id": three.id, "content": two.content}],
        patches=[parts | {"id": two.id, "content": one.content}],
        deletes=[{"id": one.id}],
    )
    assert batch.deletes == [one]
    assert [batch.patches[0].id, batch.patches[0].content] == [two.id, one.content]
    assert batch.patches[0].comment == "Ours" and batch.puts[0].comment is None
    assert [batch.puts[0].id, batch.puts[0].content] == [three.id, two.content]
    assert batch.posts[0].content == three.content and batch.posts[0].id not in {one.id, two.id, three.id}

    before = contents(cert.call("dns.records.list", "as the batch left them", zone_id=zone, per_page=5000))
    assert before == sorted(post["content"] for post in posts)
    deletes = [{"id": two.id}]
    args = ("dns.records.batch", "one of the changes is invalid", BadRequestError, 81058)
    cert.refused(*args, zone_id=zone, deletes=deletes, posts=extra + extra)
    args = ("dns.records.batch", "one of the records is unknown", NotFoundError, 81044)
    cert.refused(*args, zone_id=zone, deletes=deletes, patches=[parts | {"id": one.id}])
    after = contents(cert.call("dns.records.list", "a failed batch changed nothing", zone_id=zone, per_page=5000))
    assert after == before


def certify_listings(cert, zone):
    request = {"zone_id": zone, "type": "AAAA", "name": "api", "content": "2001:db8::1", "ttl": 1, "proxied": True}
    cert.call("dns.records.create", "a proxied AAAA record", **request)

    def found(what, **filters):
        return contents(cert.call("dns.records.list", what, zone_id=zone, **filters))

    everything = found("all on one page", per_page=5000)
    assert len(everything) == BATCH_CHANGES_MAX + 1
    by_default = [(page, f"page {page} of 3 by default") for page in (1, 2, 3)]
    pages = [cert.call("dns.records.list", what, zone_id=zone, page=page) for page, what in by_default]
    assert [len(page.result) for page in pages] == [100, 100, 1] and pages[0].result_info.per_page == 100
    assert sorted(record.content for page in pages for record in page.result) == everything
    assert found("a page after the last", page=4) == []
    assert sorted(record.content for record in cert.client.dns.records.list(zone_id=zone, per_page=67)) == everything
    cert.line("dns.records.list", "all pages, with the client's own iterator")

    only = ["2001:db8::1"]
    assert found("by full name", name={"exact": "API.example.com"}) == only
    assert found("by full name, in the short form", extra_query={"name": "api.example.com"}) == only
    assert found("relative names match nothing", name={"exact": "api"}) == []
    assert found("by name and type", name={"exact": "api.example.com"}, type="A") == []
    assert found("by type", type="AAAA") == only
    assert found("by the name's beginning", name={"startswith": "api."}) == only
    assert found("by a part of the name", name={"contains": "pi.ex"}) == only
    assert found("by content", content={"exact": "198.51.100.7"}) == ["198.51.100.7"]
    assert found("by the content's end", content={"endswith": ".77"}) == ["198.51.100.77"]
    assert found("by the proxied flag", proxied=True) == only
    # The batch above replaced two of the 200 records by records without a comment.
    ours = found("by comment", comment={"exact": "ours"}, per_page=5000)
    assert len(ours) == BATCH_CHANGES_MAX - 2
    assert found("by having a comment", comment={"present": "true"}, per_page=5000) == ours
    assert len(found("by having no comment", comment={"absent": "true"})) == 3
    nowhere = {"zone_id": "0123456789abcdef0123456789abcdef"}
    cert.refused("dns.records.list", "an unknown zone", NotFoundError, 7003, **nowhere)
    cert.refused("dns.records.batch", "an unknown zone", NotFoundError, 7003, **nowhere)


def certify_refusals(cert, zone):
    stranger = cert.client_with("wrong")
    sent = cert.sent
    args = ("dns.records.list", "a wrong token", AuthenticationError, 10000)
    cert.refused(*args, client=stranger, zone_id=zone)
    # Requests with another token don't count against this token's limit.
    cert.sent = sent

    while cert.sent < REQUESTS_MAX:
        cert.client.zones.list(name="example.com")
    args = ("zones.list", f"request {REQUESTS_MAX + 1} in five minutes", RateLimitError, 971)
    error = cert.refused(*args, name="example.com")
    headers = error.response.headers
    assert headers["retry-after"] == str(WINDOW_SECONDS), headers
    assert headers["ratelimit"] == f'"default";r=0;t={WINDOW_SECONDS}', headers
    args = ("dns.records.list", "all calls until the limit resets", RateLimitError, 971)
    error = cert.refused(*args, zone_id=zone)
    assert 0 < int(error.response.headers["retry-after"]) <= WINDOW_SECONDS


def main():
    base_url, token = sys.argv[1:]
    cert = Certification(base_url, token)
    zone = certify_zones(cert)
    certify_single_records(cert, zone)
    certify_batches(cert, zone)
    certify_listings(cert, zone)
    certify_refusals(cert, zone)


if __name__ == "__main__":
    main()
