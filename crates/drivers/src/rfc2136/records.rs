//! DNS records on your own server, such as BIND, with dynamic updates (RFC 2136) that are signed with a shared key
//! (TSIG).
//!
//! One message changes a set and its mark. The server applies it only if both are unchanged since they were read. The
//! driver sends messages through a service: TCP in production.
//!
//! ```text
//! message             used for
//! query A, AAAA       read
//! query TXT           read: the mark
//! update              write
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hickory_proto::op::{Message, OpCode, Query, ResponseCode, UpdateMessage};
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::rdata::{A, AAAA, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, TSigner};
use plan::{Address, PoolKey, RecordKind, RecordName, RecordSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::http::{CALL_SECONDS_MAX, quoted};
use crate::network::MaySend;
use crate::record::{RecordChange, RecordDriver, mark, mark_name, owner_in};
use crate::tokens::Tokens;
use crate::{DriverError, Seconds};

/// What the driver sends messages through: a DNS message goes in, the response comes out.
pub type MessageService = BoxCloneSyncService<Bytes, Bytes, BoxError>;

/// The TTL if the object sets none. The protocol has no default.
const TTL_DEFAULT: u32 = 300;

/// How many seconds the clocks of the controller and the server may differ.
const FUDGE: u16 = 300;

/// The key that signs messages.
pub struct Key {
    /// The name of the key on the server.
    pub name: String,
    /// The algorithm, such as `hmac-sha256`.
    pub algorithm: String,
    /// The source of the secret, in base64.
    pub secret: Arc<dyn Tokens>,
}

/// Publishes DNS records on one server.
pub struct Rfc2136 {
    service: MessageService,
    key: Option<Key>,
    now: Seconds,
}

impl Rfc2136 {
    /// Creates a driver for the server behind a service. Without a key, messages are not signed.
    pub fn new(service: MessageService, key: Option<Key>, now: Seconds) -> Self {
        Self { service, key, now }
    }

    async fn signer(&self) -> Result<Option<TSigner>, DriverError> {
        let Some(Key { name, algorithm, secret }) = &self.key else { return Ok(None) };
        let invalid = |what: &str| DriverError::Invalid(format!("the TSIG key {name}: {what}"));
        let algorithm = match algorithm.as_str() {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => {
                let what = format!("{other} is not supported: use hmac-sha256, hmac-sha384 or hmac-sha512");
                return Err(invalid(&what));
            }
        };
        let secret = data_encoding::BASE64.decode(secret.token().await?.as_bytes());
        let secret = secret.map_err(|_| invalid("its secret is not valid base64"))?;
        let signer = TSigner::new(secret, algorithm, named(name)?, FUDGE);
        signer.map(Some).map_err(|error| invalid(&error.to_string()))
    }

    /// Sends a message and returns the response. With a key, the response must have a valid signature.
    async fn exchange(&self, what: &str, mut message: Message) -> Result<Message, DriverError> {
        let unavailable =
            |error: &dyn std::fmt::Display| DriverError::Unavailable(format!("{what}: {error}"));
        // Nothing was sent, and a retry would fail in the same way.
        let unfit = |error: &dyn std::fmt::Display| {
            DriverError::Invalid(format!("{what}: the records do not fit into one DNS message: {error}"))
        };
        let verifier = match self.signer().await? {
            Some(signer) => message.finalize(&signer, (self.now)()).map_err(|error| unfit(&error))?,
            None => None,
        };
        let id = message.id;
        let bytes = Bytes::from(message.to_vec().map_err(|error| unfit(&error))?);
        if is_cut(&bytes) {
            return Err(unfit(&"it is too long"));
        }
        let longest = Duration::from_secs(CALL_SECONDS_MAX);
        let answer = tokio::time::timeout(longest, self.service.clone().oneshot(bytes)).await;
        let answer = answer.map_err(|_| unavailable(&format!("no response within {CALL_SECONDS_MAX} s")))?;
        let answer = answer.map_err(|error| unavailable(&error))?;
        let read = Message::from_vec(&answer).map_err(|error| unavailable(&error))?;
        if read.id != id {
            return Err(unavailable(&"the ID of the DNS response does not match the ID of the request"));
        }
        explain(what, read.response_code)?;
        if let Some(mut verifier) = verifier {
            verifier
                .verify(&answer)
                .map_err(|error| unavailable(&format!("the response has no valid signature: {error}")))?;
        }
        Ok(read)
    }

    async fn query(&self, name: &str, kind: RecordType) -> Result<Vec<Record>, DriverError> {
        let mut message = Message::query();
        let name = named(name)?;
        message.add_query(Query::query(name.clone(), kind));
        let answer = self.exchange("query", message).await?;
        if !answer.authoritative {
            return Err(DriverError::Invalid(format!(
                "the server in RFC2136_SERVER is not authoritative for {name}: add the zone there"
            )));
        }
        let is_meant = |record: &Record| record.record_type() == kind && record.name == name;
        Ok(answer.answers.iter().filter(|record| is_meant(record)).cloned().collect())
    }

    async fn set(&self, name: &RecordName) -> Result<RecordSet, DriverError> {
        let found = self.query(&name.name, kind(name.kind)).await?;
        let address = |record: &Record| match &record.data {
            RData::A(value) => Some(Address(IpAddr::V4(value.0))),
            RData::AAAA(value) => Some(Address(IpAddr::V6(value.0))),
            _ => None,
        };
        let values: BTreeSet<Address> = found.iter().filter_map(address).collect();
        let marks = self.query(&mark_name(name), RecordType::TXT).await?;
        let owner = |record: &Record| match &record.data {
            RData::TXT(text) => owner_in(&String::from_utf8_lossy(&text.txt_data.concat())),
            _ => None,
        };
        let ttl = found.first().map(|record| record.ttl);
        Ok(RecordSet { values, ttl, owner: marks.iter().find_map(owner) })
    }

    async fn change(&self, change: &RecordChange) -> Result<(), DriverError> {
        let message = update(change)?;
        match self.exchange("update", message).await {
            Err(DriverError::Conflict(_)) => {
                let message =
                    format!("{} changed after the controller read it, or it is a CNAME", change.name);
                Err(DriverError::Conflict(message))
            }
            answer => answer.map(|_| ()),
        }
    }
}

impl RecordDriver for Rfc2136 {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        _: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        self.set(name).boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.change(change).boxed()
    }
}

/// The message that changes a set and its mark, if both are unchanged since they were read.
fn update(change: &RecordChange) -> Result<Message, DriverError> {
    let RecordChange { name, old, new, .. } = change;
    let mut message = Message::query();
    message.metadata.op_code = OpCode::Update;
    message.metadata.recursion_desired = false;
    let mut zone = Query::query(named(&name.zone)?, RecordType::SOA);
    zone.set_query_class(DNSClass::IN);
    message.add_zone(zone);
    let ttl = new.ttl.unwrap_or(TTL_DEFAULT);
    let values = |set: &RecordSet| set.values.iter().map(|value| rdata(*value)).collect::<Vec<_>>();
    let text = |set: &RecordSet| {
        let marks = set.owner.iter().map(|owner| RData::TXT(TXT::new(vec![mark(owner)])));
        marks.collect::<Vec<_>>()
    };
    let parts = [
        (named(&name.name)?, kind(name.kind), values(old), values(new)),
        (named(&mark_name(name))?, RecordType::TXT, text(old), text(new)),
    ];
    // If the name is a CNAME, a server accepts an update and ignores the address. So the update requires that no CNAME
    // exists.
    message.add_pre_requisite(absent(named(&name.name)?, RecordType::CNAME));
    for (name, kind, old, new) in parts {
        if old.is_empty() {
            message.add_pre_requisite(absent(name.clone(), kind));
        }
        for value in &old {
            message.add_pre_requisite(Record::from_rdata(name.clone(), 0, value.clone()));
        }
        if old != new {
            let mut all = Record::update0(name.clone(), 0, kind);
            all.dns_class = DNSClass::ANY;
            message.add_update(all.into_record_of_rdata());
        }
        for value in new {
            message.add_update(Record::from_rdata(name.clone(), ttl, value));
        }
    }
    Ok(message)
}

/// The prerequisite that a name has no record of a type.
fn absent(name: Name, kind: RecordType) -> Record {
    let mut absent = Record::update0(name, 0, kind);
    absent.dns_class = DNSClass::NONE;
    absent.into_record_of_rdata()
}

fn named(name: &str) -> Result<Name, DriverError> {
    let mut parsed = Name::from_ascii(name).map_err(|error| {
        DriverError::Invalid(format!("{} is not a valid DNS name: {error}", quoted(name)))
    })?;
    parsed.set_fqdn(true);
    Ok(parsed)
}

fn kind(kind: RecordKind) -> RecordType {
    match kind {
        RecordKind::A => RecordType::A,
        RecordKind::Aaaa => RecordType::AAAA,
    }
}

fn rdata(value: Address) -> RData {
    match value.0 {
        IpAddr::V4(value) => RData::A(A(value)),
        IpAddr::V6(value) => RData::AAAA(AAAA(value)),
    }
}

fn explain(what: &str, code: ResponseCode) -> Result<(), DriverError> {
    let denied = |permission: &str| DriverError::Denied {
        permission: permission.into(),
        message: format!("{what}: the server answered {code}"),
    };
    match code {
        // A name that does not exist is an empty set.
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(()),
        ResponseCode::NXRRSet | ResponseCode::YXRRSet | ResponseCode::YXDomain => {
            Err(DriverError::Conflict(format!("{what}: {code}")))
        }
        ResponseCode::NotAuth => {
            Err(denied("a TSIG key that the server accepts, for a zone that the server hosts"))
        }
        ResponseCode::Refused => Err(denied(
            "an update-policy for the name and for its owner record (TXT, _owner-a or _owner-aaaa)",
        )),
        ResponseCode::ServFail => Err(DriverError::Unavailable(format!("{what}: {code}"))),
        other => Err(DriverError::Invalid(format!("{what}: the server answered {other}"))),
    }
}

/// Sends messages to a server over TCP, with one connection for each. It checks the fence before it sends an update.
/// The kernel resends unacknowledged data for at most `linger`.
pub fn network(server: &str, may_leave: MaySend, linger: Duration) -> MessageService {
    let server: Arc<str> = server.into();
    let send = move |message: Bytes| {
        let (server, may_leave) = (Arc::clone(&server), Arc::clone(&may_leave));
        async move {
            let mut stream = TcpStream::connect(&*server).await?;
            stream.set_nodelay(true)?;
            let milliseconds = u32::try_from(linger.as_millis()).unwrap_or(u32::MAX);
            rustix::net::sockopt::set_tcp_user_timeout(&stream, milliseconds)?;
            let length = u16::try_from(message.len())?.to_be_bytes();
            let framed = [&length[..], &message[..]].concat();
            if is_update(&message) && !may_leave() {
                return Err("request not sent: the lease of this replica is no longer valid".into());
            }
            stream.write_all(&framed).await?;
            let length = stream.read_u16().await?;
            let mut answer = vec![0; length.into()];
            stream.read_exact(&mut answer).await?;
            Ok(Bytes::from(answer))
        }
    };
    MessageService::new(tower::service_fn(send))
}

/// Whether a message is truncated, by the flag in its header.
fn is_cut(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| flags & 0b10 != 0)
}

/// Whether a message is an update, by the operation code in its header.
fn is_update(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| (flags >> 3) & 0xf == u8::from(OpCode::Update))
}
