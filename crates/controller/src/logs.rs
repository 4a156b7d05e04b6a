//! The process's log.
//!
//! In: what `RUST_LOG` asks for. Out: those lines on stderr, without what [`drivers::logs`] never shows.

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

/// Begins to log. `default` is the filter where `RUST_LOG` is not set.
pub fn init(default: &str, format: LogFormat) {
    let asked = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let is_terminal = std::io::stderr().is_terminal();
    registry().with(layer(asked, format, is_terminal, std::io::stderr)).init();
}

fn layer<S, W>(asked: EnvFilter, format: LogFormat, ansi: bool, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_ansi(ansi).with_writer(writer);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    lines.with_filter(asked.and(filter::filter_fn(may_show)))
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

    /// What is logged with this in `RUST_LOG` while SDKs and others print a token, and we say something.
    fn logged(asked: &str, format: LogFormat) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = layer(EnvFilter::new(asked), format, false, move || writer.clone());
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
    fn no_setting_of_rust_log_shows_what_sdks_print() {
        for asked in [
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
                let logged = logged(asked, format);
                assert!(!logged.contains("canary"), "{asked}: {logged}");
                assert!(logged.contains("leading"), "{asked}: {logged}");
            }
        }
    }
}
