//! Failpoints: let a test kill or stop this process at a certain request. Compiled only with the feature `failpoints`,
//! which no release has.
//!
//! The process counts every request to a cloud and every write to Kubernetes. The environment variable `FAILPOINT` sets
//! what happens at one of them. `kill-before:17` and `kill-after:17` kill the process with SIGKILL before or after
//! request 17. `stop-before:addAccessConfig` stops it with SIGSTOP before the first request whose method and URL
//! contain that text.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use drivers::http::HttpService;
use futures::future::BoxFuture;
use rustix::process::{Signal, getpid, kill_process};
use tower::{Service, ServiceExt};

enum Failpoint {
    KillBefore(u64),
    KillAfter(u64),
    StopBefore(String),
    None,
}

/// Upper bound for the delivery of SIGSTOP.
const STOP_TAKES: std::time::Duration = std::time::Duration::from_millis(200);

static COUNT: AtomicU64 = AtomicU64::new(0);
static STOPPED: AtomicBool = AtomicBool::new(false);

fn failpoint() -> &'static Failpoint {
    static FAILPOINT: OnceLock<Failpoint> = OnceLock::new();
    FAILPOINT.get_or_init(|| {
        let text = std::env::var("FAILPOINT").unwrap_or_default();
        match text.split_once(':') {
            Some(("kill-before", number)) => number.parse().map_or(Failpoint::None, Failpoint::KillBefore),
            Some(("kill-after", number)) => number.parse().map_or(Failpoint::None, Failpoint::KillAfter),
            Some(("stop-before", part)) => Failpoint::StopBefore(part.to_owned()),
            _ => Failpoint::None,
        }
    })
}

fn before(line: &str) -> u64 {
    let number = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
    tracing::info!(number, line, "request");
    match failpoint() {
        Failpoint::KillBefore(at) if *at == number => die(),
        Failpoint::StopBefore(part)
            if line.contains(part.as_str()) && !STOPPED.swap(true, Ordering::SeqCst) =>
        {
            tracing::info!("stopping at a failpoint");
            let _ = kill_process(getpid(), Signal::STOP);
            // The signal is delivered asynchronously. This thread must not send the request before that.
            std::thread::sleep(STOP_TAKES);
        }
        _ => {}
    }
    number
}

fn after(number: u64) {
    if matches!(failpoint(), Failpoint::KillAfter(at) if *at == number) {
        die();
    }
}

fn die() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Adds failpoints to the HTTP service for clouds.
pub fn around(service: HttpService) -> HttpService {
    let send = move |request: http::Request<bytes::Bytes>| {
        let service = service.clone();
        async move {
            let number = before(&format!("{} {}", request.method(), request.uri()));
            let answer = service.oneshot(request).await;
            after(number);
            answer
        }
    };
    HttpService::new(tower::service_fn(send))
}

/// A layer that adds failpoints to the writes of a Kubernetes client.
#[derive(Clone, Copy)]
pub struct Layer;

impl<S> tower::Layer<S> for Layer {
    type Service = Around<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Around(inner)
    }
}

/// The service of a Kubernetes client, with failpoints.
#[derive(Clone)]
pub struct Around<S>(S);

impl<S, B> Service<http::Request<B>> for Around<S>
where
    S: Service<http::Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if drivers::http::is_read(&request) {
            return Box::pin(self.0.call(request));
        }
        let number = before(&format!("{} {}", request.method(), request.uri()));
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await;
            after(number);
            answer
        })
    }
}
