//! Runs moto, a server that emulates AWS, behind a proxy that corrects and disturbs it.
//!
//! In: requests of a driver, and a service that sends them to a port on loopback. Out: moto's responses. The proxy can
//! drop requests and responses, delay and truncate responses, and return the errors with which AWS throttles or denies
//! a request. It also corrects where moto differs from AWS:
//!
//! ```text
//! AWS                                                        moto
//! an ephemeral address belongs to `amazon`                   it belongs to the account
//! an address on an interface names the instance              it does not
//! an interface that gets a second address loses the first    it has both
//! releasing an attached address fails                        it is detached and released
//! a terminated instance loses its address                    it keeps it
//! disassociating twice succeeds                              the second time is an error
//! DELETE of a record must match its current value            it may match any earlier value
//! CREATE of an existing record fails                         it then exists twice
//! a batch may delete a record and create the same one again  that fails if it has the same value
//! there are rate limits and permissions                      there are none
//! ```
//!
//! Not corrected: reads are never stale, an ephemeral address can't be requested, and signatures are not checked. The
//! default of `AllowReassociation` differs too. That does not matter, because the driver always sends it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::http::{HeaderMap, HeaderValue, Request, Response, header};
use anyhow::{Result, ensure};
use bytes::Bytes;
use tempfile::TempDir;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::control_plane::free_ports;
use crate::fake::faults::{Fault, Faults, Rule};
use crate::fake::signature::Signature;
use crate::fake::{Answer, Machine, Refusal, Route, ec2, pairs_of, route53, xml};
use crate::process::Process;
use crate::python;

/// How long to wait until the server accepts connections.
const READY_SECONDS_MAX: u64 = 60;

const POLL_EVERY: Duration = Duration::from_millis(100);

/// The access key ID of every request that the tests send.
pub const KEY: &str = "AKIDEXAMPLE";

/// A service that sends a request to a port on loopback.
pub type Upstream = BoxCloneSyncService<Request<Bytes>, Response<Bytes>, BoxError>;

/// A running moto server and the proxy in front of it. Clones share both.
#[derive(Clone)]
pub struct Moto {
    shared: Arc<Shared>,
}

struct Shared {
    // Fields are dropped in this order: the server first, the folder with its files last.
    _process: Process,
    port: u16,
    upstream: Upstream,
    seen: Mutex<State>,
    _folder: TempDir,
}

#[derive(Default)]
struct State {
    faults: Faults,
    /// Denied permissions, such as `ec2:AssociateAddress`.
    denied: BTreeSet<String>,
    /// Associations that a request has ended.
    ended: BTreeSet<String>,
    /// Requests that allowed AWS to take an address from its current holder.
    taking: Vec<String>,
    /// How often the proxy forwarded each call to the server.
    calls: BTreeMap<&'static str, usize>,
}

impl Moto {
    /// Starts a server and waits until it accepts connections.
    pub async fn start(upstream: Upstream) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ip-address-controller-moto-").tempdir()?;
        let python = python::with_packages("moto")?;
        let port = free_ports(1)?[0];
        let program = python.parent().unwrap_or(Path::new("")).join("moto_server");
        let configure = |command: &mut Command| {
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        };
        let mut process = Process::start("moto", &program, configure, folder.path())?;
        let deadline = Instant::now() + Duration::from_secs(READY_SECONDS_MAX);
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            process.ensure_running()?;
            ensure!(
                Instant::now() < deadline,
                "moto was not ready after {READY_SECONDS_MAX} s; its log ends with:\n{}",
                process.log_tail()
            );
            tokio::time::sleep(POLL_EVERY).await;
        }
        let seen = Mutex::default();
        Ok(Self { shared: Arc::new(Shared { _process: process, port, upstream, seen, _folder: folder }) })
    }

    /// The proxy, as the service that a driver sends its requests to.
    pub fn service(&self) -> Upstream {
        let moto = self.clone();
        Upstream::new(tower::service_fn(move |request| {
            let moto = moto.clone();
            async move { moto.exchange(request).await }
        }))
    }

    /// Resets the server and the proxy to their initial state.
    pub async fn reset(&self) -> Result<(), BoxError> {
        *self.seen() = State::default();
        let request = Request::post(self.url("/moto-api/reset")).body(Bytes::new())?;
        self.shared.upstream.clone().oneshot(request).await.map(drop)
    }

    /// Adds a fault to inject.
    pub fn inject(&self, rule: Rule) {
        self.seen().faults.add(rule);
    }

    /// Denies a permission, such as `ec2:AssociateAddress`.
    pub fn deny(&self, permission: &str) {
        self.seen().denied.insert(permission.to_owned());
    }

    /// The requests that allowed AWS to take an address from its current holder. There must be none.
    pub fn taking(&self) -> Vec<String> {
        self.seen().taking.clone()
    }

    /// How often the proxy forwarded each call of a driver.
    pub fn calls(&self) -> BTreeMap<&'static str, usize> {
        self.seen().calls.clone()
    }

    /// Sends a request to EC2 directly, past the proxy. `form` is the request's form without the version. Returns the
    /// body of the response.
    pub async fn ec2(&self, region: &str, form: &str) -> Result<String, BoxError> {
        self.ask(&signed(region, "ec2")?, form).await
    }

    /// Creates a hosted zone.
    pub async fn add_zone(&self, name: &str) -> Result<(), BoxError> {
        let body = xml::element(
            "CreateHostedZoneRequest",
            &(xml::text("Name", name) + &xml::text("CallerReference", "one")),
        );
        let mut request = Request::post(self.url("/2013-04-01/hostedzone")).body(Bytes::from(body))?;
        request.headers_mut().extend(signed("us-east-1", "route53")?);
        let answer = self.shared.upstream.clone().oneshot(request).await?;
        if answer.status().is_success() { Ok(()) } else { Err(text_of(&answer).into()) }
    }

    /// Starts an instance, with or without an ephemeral address, and returns its ID.
    pub async fn add_instance(&self, region: &str, has_ephemeral: bool) -> Result<String, BoxError> {
        let form = format!(
            "Action=RunInstances&ImageId=ami-12c6146b&MinCount=1&MaxCount=1&NetworkInterface.1.DeviceIndex=0\
             &NetworkInterface.1.AssociatePublicIpAddress={has_ephemeral}"
        );
        let body = self.ec2(region, &form).await?;
        xml::first("instanceId", &body).ok_or_else(|| format!("no instance: {body}").into())
    }

    /// Terminates an instance, and detaches its address as AWS does.
    pub async fn terminate_instance(&self, region: &str, id: &str) -> Result<(), BoxError> {
        for item in xml::items("addressesSet", &self.ec2(region, "Action=DescribeAddresses").await?) {
            let association = xml::first("associationId", item).filter(|association| !association.is_empty());
            if let (Some(association), true) =
                (association, xml::first("instanceId", item).as_deref() == Some(id))
            {
                self.ec2(region, &format!("Action=DisassociateAddress&AssociationId={association}")).await?;
            }
        }
        self.ec2(region, &format!("Action=TerminateInstances&InstanceId.1={id}")).await.map(drop)
    }

    /// The holder of an address, as `region/instance`.
    pub async fn holder(&self, region: &str, ip: &str) -> Result<Option<String>, BoxError> {
        let form = format!("Action=DescribeAddresses&Filter.1.Name=public-ip&Filter.1.Value.1={ip}");
        let instance = xml::first("instanceId", &self.ec2(region, &form).await?);
        Ok(instance.filter(|id| !id.is_empty()).map(|id| format!("{region}/{id}")))
    }

    fn seen(&self) -> MutexGuard<'_, State> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.shared.port)
    }

    /// Sends a request to EC2 with the credentials of these headers.
    async fn ask(&self, headers: &HeaderMap, form: &str) -> Result<String, BoxError> {
        let body = Bytes::from(format!("{form}&Version=2016-11-15"));
        let mut request = Request::post(self.url("/")).body(body)?;
        for name in [header::AUTHORIZATION, header::HOST] {
            request.headers_mut().extend(headers.get(&name).cloned().map(|value| (name, value)));
        }
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(header::CONTENT_TYPE, form);
        let answer = self.shared.upstream.clone().oneshot(request).await?;
        if answer.status().is_success() { Ok(text_of(&answer)) } else { Err(text_of(&answer).into()) }
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, BoxError> {
        let is_names =
            Signature::of(request.headers()).is_some_and(|signature| signature.service == "route53");
        let route = if is_names { route53::Route53::route(&request) } else { ec2::Ec2::route(&request) };
        let refuse = |refusal: &Refusal| {
            response(if is_names { route53::refused(refusal) } else { ec2::refused(refusal) })
        };
        let Some(route) = route else { return refuse(&Refusal::NoSuchCall) };
        let (fault, is_denied) = {
            let mut seen = self.seen();
            let permission = format!("{}:{}", if is_names { "route53" } else { "ec2" }, route.name);
            (seen.faults.next(&route, false), seen.denied.contains(&permission))
        };
        match &fault {
            _ if is_denied => return refuse(&Refusal::Forbidden("No policy allows it.".into())),
            Some(Fault::LoseRequest) => return Err("the connection was closed before an answer came".into()),
            Some(Fault::Refuse(refusal)) => return refuse(refusal),
            _ => {}
        }
        *self.seen().calls.entry(route.name).or_default() += 1;
        let answer = self.as_amazon_does(&route, request).await?;
        match fault {
            Some(Fault::LoseReply) => Err("the connection was closed before an answer came".into()),
            Some(Fault::Truncate) => Ok(answer.map(|body| body.slice(..body.len() / 2))),
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(answer)
            }
            _ => Ok(answer),
        }
    }

    /// Moto's response, corrected to match AWS.
    async fn as_amazon_does(
        &self,
        route: &Route,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, BoxError> {
        let headers = request.headers().clone();
        let asked = pairs_of(std::str::from_utf8(request.body())?);
        let get = |name: &str| asked.get(name).cloned().unwrap_or_default();
        match route.name {
            _ if get("DryRun") == "true" => self.forward(request).await,
            "AssociateAddress" => self.associate(&headers, request, &asked).await,
            "DisassociateAddress" => {
                let association = get("AssociationId");
                if self.seen().ended.contains(&association) {
                    let body = xml::element("DisassociateAddressResponse", &xml::text("return", "true"));
                    return response(Answer::text(200, "text/xml", &body));
                }
                let answer = self.forward(request).await?;
                if answer.status().is_success() {
                    self.seen().ended.insert(association);
                }
                Ok(answer)
            }
            "ReleaseAddress" => {
                let form = format!("Action=DescribeAddresses&AllocationId.1={}", get("AllocationId"));
                let found = self.ask(&headers, &form).await.unwrap_or_default();
                if xml::first("associationId", &found).is_some_and(|association| !association.is_empty()) {
                    return response(ec2::error(400, "InvalidIPAddress.InUse", "The address is in use."));
                }
                self.forward(request).await
            }
            "DescribeInstances" => {
                let elastic = self.ask(&headers, "Action=DescribeAddresses").await?;
                let elastic: BTreeSet<&str> = xml::all("publicIp", &elastic).into_iter().collect();
                let answer = self.forward(request).await?;
                let mut body = text_of(&answer);
                for association in xml::all("association", &text_of(&answer)) {
                    let is_own = xml::all("publicIp", association).iter().all(|ip| !elastic.contains(ip));
                    let owner = xml::all("ipOwnerId", association).first().copied().unwrap_or_default();
                    let owned = association
                        .replace(&xml::text("ipOwnerId", owner), &xml::text("ipOwnerId", "amazon"));
                    if is_own {
                        body = body.replace(association, &owned);
                    }
                }
                Ok(answer.map(|_| Bytes::from(body)))
            }
            "ChangeResourceRecordSets" => match self.net_batch(&request).await? {
                Err(refused) => response(refused),
                Ok(body) => self.forward(request.map(|_| Bytes::from(body))).await,
            },
            _ => self.forward(request).await,
        }
    }

    /// Associates an address as AWS does: the interface loses the address that it had before.
    async fn associate(
        &self,
        headers: &HeaderMap,
        request: Request<Bytes>,
        asked: &BTreeMap<String, String>,
    ) -> Result<Response<Bytes>, BoxError> {
        let get = |name: &str| asked.get(name).cloned().unwrap_or_default();
        let (interface, is_safe) = (get("NetworkInterfaceId"), get("AllowReassociation") == "false");
        if !is_safe {
            self.seen().taking.push(format!("{} may be taken from its holder", get("AllocationId")));
        }
        let found = self.ask(headers, "Action=DescribeInstances").await?;
        let has_it = |found: &&str| found.contains(&interface);
        let found = xml::items("reservationSet", &found)
            .into_iter()
            .find(has_it)
            .and_then(|found| xml::first("instanceId", found));
        // The forwarded request has the ID of the instance instead of the interface: Moto then finds the interface
        // itself. With the ID of an interface, Moto does not record which instance holds the address.
        let Some(instance) = found else {
            return self.forward(request).await;
        };
        let held = format!(
            "Action=DescribeAddresses&Filter.1.Name=network-interface-id&Filter.1.Value.1={interface}"
        );
        let held = self.ask(headers, &held).await?;
        let held = xml::items("addressesSet", &held);
        let is_other = |item: &&&str| xml::first("allocationId", item) != Some(get("AllocationId"));
        for association in held.iter().filter(is_other).filter_map(|item| xml::first("associationId", item)) {
            let form = format!("Action=DisassociateAddress&AssociationId={association}");
            self.ask(headers, &form).await?;
        }
        let (head, _) = request.into_parts();
        let form = format!(
            "Action=AssociateAddress&AllocationId={}&InstanceId={instance}&AllowReassociation={}&Version=2016-11-15",
            get("AllocationId"),
            !is_safe,
        );
        self.forward(Request::from_parts(head, Bytes::from(form))).await
    }

    /// The net changes of a batch, given the current records, or Route 53's error for the batch.
    async fn net_batch(&self, request: &Request<Bytes>) -> Result<Result<String, Answer>, BoxError> {
        let mut listing = Request::get(self.url(request.uri().path())).body(Bytes::new())?;
        listing.headers_mut().extend(
            request.headers().get(header::AUTHORIZATION).cloned().map(|value| (header::AUTHORIZATION, value)),
        );
        let listed = text_of(&self.shared.upstream.clone().oneshot(listing).await?);
        let body = String::from_utf8_lossy(request.body());
        Ok(route53::net_batch(&listed, &body))
    }

    async fn forward(&self, request: Request<Bytes>) -> Result<Response<Bytes>, BoxError> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = self.url(path).parse()?;
        head.headers.remove(header::CONTENT_LENGTH);
        self.shared.upstream.clone().oneshot(Request::from_parts(head, body)).await
    }
}

fn signed(region: &str, service: &str) -> Result<HeaderMap, BoxError> {
    let signed = format!(
        "AWS4-HMAC-SHA256 Credential={KEY}/20260101/{region}/{service}/aws4_request, SignedHeaders=host, Signature=0"
    );
    Ok(HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(&signed)?)]))
}

fn text_of(answer: &Response<Bytes>) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}

fn response(answer: Answer) -> Result<Response<Bytes>, BoxError> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let body = answer.body.as_str().unwrap_or_default().to_owned();
    Ok(response.body(Bytes::from(body))?)
}
