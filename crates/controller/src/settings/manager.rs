//! The flags that capi-vip-allocator has from controller-runtime. They have the same meaning here; only the defaults
//! differ.

use clap::{Args, ValueEnum};

use super::values::{LogFormat, boolean};
use crate::bind_address::BindAddress;

/// Default metrics address of controller-runtime. It also applies if the flag is empty.
const METRICS_ADDRESS: &str = ":8080";

/// The flags of a controller-runtime manager and of its logger, zap.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Flags of capi-vip-allocator")]
pub struct ManagerFlags {
    /// Bind address of /metrics, such as :8080. The address of the probes serves /metrics too. 0 turns both
    /// off. Overrides METRICS_PORT
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    pub metrics_bind_address: Option<BindAddress>,

    /// Bind address of /healthz and /readyz, such as :8081. 0 turns them off. Overrides HEALTH_PORT
    #[arg(long, value_name = "ADDRESS", value_parser = probe_address)]
    pub health_probe_bind_address: Option<BindAddress>,

    /// Defaults for logging. true: format console and level debug. false: json and info. Overrides LOG_FORMAT
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", value_parser = boolean)]
    pub zap_devel: Option<bool>,

    /// Format of log lines. Overrides LOG_FORMAT
    #[arg(long, value_name = "ENCODER", value_enum, ignore_case = true)]
    pub zap_encoder: Option<Encoder>,

    /// Log level: debug, info, error, panic, or a number: 1 is debug, more is trace. RUST_LOG overrides it
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    pub zap_log_level: Option<LogLevel>,

    /// Accepted without effect: log lines have no stack traces
    #[arg(long, value_name = "LEVEL")]
    pub zap_stacktrace_level: Option<String>,

    /// Accepted without effect: times in log lines are RFC 3339 in UTC
    #[arg(long, value_name = "ENCODING")]
    pub zap_time_encoding: Option<String>,
}

impl ManagerFlags {
    /// The log format that the flags set, if any.
    pub fn log_format(&self) -> Option<LogFormat> {
        let encoder = self.zap_encoder.or(self.zap_devel.map(|is_devel| match is_devel {
            true => Encoder::Console,
            false => Encoder::Json,
        }));
        encoder.map(|encoder| match encoder {
            Encoder::Console => LogFormat::Text,
            Encoder::Json => LogFormat::Json,
        })
    }

    /// The log level that the flags set, if any.
    pub fn log_level(&self) -> Option<LogLevel> {
        self.zap_log_level.or(self.zap_devel.map(|is_devel| match is_devel {
            true => LogLevel::Debug,
            false => LogLevel::Info,
        }))
    }
}

/// Log formats of zap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoder {
    /// Human-readable text.
    Console,
    /// One JSON object per line.
    Json,
}

/// Log level of the crates of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The name of the level in `RUST_LOG`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Parses a log level of zap. In zap, 1 is debug, and higher numbers have no name; they become trace.
fn log_level(text: &str) -> Result<LogLevel, String> {
    match text.to_lowercase().as_str() {
        "debug" => Ok(LogLevel::Debug),
        "info" => Ok(LogLevel::Info),
        "error" | "panic" => Ok(LogLevel::Error),
        number => match number.parse::<u8>() {
            Ok(1) => Ok(LogLevel::Debug),
            Ok(2..=127) => Ok(LogLevel::Trace),
            _ => Err("expected debug, info, error, panic, or a number from 1 to 127".into()),
        },
    }
}

fn metrics_address(text: &str) -> Result<BindAddress, String> {
    if text.is_empty() { METRICS_ADDRESS } else { text }.parse()
}

/// An empty address turns probes off, as in controller-runtime.
fn probe_address(text: &str) -> Result<BindAddress, String> {
    if text.is_empty() { "0" } else { text }.parse()
}
