//! Sets up logging.
//!
//! In: the filter in `RUST_LOG`, or a default. Out: log lines on stderr. No filter can enable the lines that
//! [`drivers::logs`] suppresses because they can contain tokens.

use std::io::IsTerminal;

use drivers::logs::may_show;
use tracing::Subscriber;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, filter, fmt, registry};

use crate::settings::LogFormat;

/// Starts logging. `default` is the filter if `RUST_LOG` is not set or is invalid.
pub fn init(default: &str, format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let is_terminal = std::io::stderr().is_terminal();
    registry().with(layer(filter, format, is_terminal, std::io::stderr)).init();
}

fn layer<S, W>(wanted: EnvFilter, format: LogFormat, ansi: bool, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_ansi(ansi).with_writer(writer);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    lines.with_filter(wanted.and(filter::filter_fn(may_show)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex, PoisonError};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log with this value of `RUST_LOG` while SDKs log a token and the controller logs `leading`.
    fn logged(rust_log: &str, format: LogFormat) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(EnvFilter::new(rust_log), format, false, move || writer.clone());
        tracing::subscriber::with_default(registry().with(layer), || {
            macro_rules! print_token {
                ($($target:literal),*) => {$(
                    let span = tracing::error_span!(target: $target, "request", header = "canary-token");
                    let _entered = span.enter();
                    tracing::trace!(target: $target, token = "canary-token", "at trace");
                    tracing::debug!(target: $target, token = "canary-token", "at debug");
                    tracing::info!(target: $target, token = "canary-token", "at info");
                )*};
            }
            print_token!(
                "aws_config",
                "aws_sigv4::http_request",
                "aws_smithy_runtime::client",
                "aws_runtime"
            );
            print_token!(
                "azure_core::http",
                "azure_identity",
                "typespec_client_core::http",
                "google_cloud_auth"
            );
            tracing::warn!(target: "aws_config::imds", token = "canary-token", "whole answers");
            tracing::error!(target: "aws_smithy_runtime", token = "canary-token", "whole requests");
            tracing::trace!(target: "hyper::proto", token = "canary-token", "bytes");
            tracing::debug!(target: "h2::codec", token = "canary-token", "frames");
            tracing::trace!(target: "reqwest::connect", token = "canary-token", "bytes");
            tracing::trace!(target: "kube_client::client", token = "canary-token", "headers");
            tracing::info!(target: "controller::run", "leading");
        });
        let bytes = lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn no_value_of_rust_log_shows_tokens_that_sdks_log() {
        for rust_log in [
            "trace",
            "info",
            "debug,aws_config=trace",
            "info,aws_smithy_runtime=trace,aws_sigv4=trace,aws_runtime=trace",
            "info,azure_core=trace,azure_identity=trace,typespec_client_core=trace",
            "info,google_cloud_auth=trace,reqwest=trace,hyper=trace,h2=trace,kube_client=trace",
            "info,[request]=trace",
            "info,[{token}]=trace",
        ] {
            for format in [LogFormat::Text, LogFormat::Json] {
                let logged = logged(rust_log, format);
                assert!(!logged.contains("canary"), "{rust_log}: {logged}");
                assert!(logged.contains("leading"), "{rust_log}: {logged}");
            }
        }
    }
}
