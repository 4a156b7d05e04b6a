//! The flags that capi-vip-allocator has from controller-runtime, with the meaning that they have there.

use clap::{Args, ValueEnum};

use super::values::{LogFormat, boolean};
use crate::bind_address::BindAddress;

/// controller-runtime's own default for metrics, which an empty value means.
const METRICS_ADDRESS: &str = ":8080";

/// Flags of a manager that controller-runtime builds.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Flags of capi-vip-allocator")]
pub struct ManagerFlags {
    /// Address of /metrics, such as :8080. 0 turns metrics off, also at the probes' address. Overrides METRICS_PORT
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    pub metrics_bind_address: Option<BindAddress>,

    /// Address of /healthz and /readyz, such as :8081. 0 turns them off. Overrides HEALTH_PORT
    #[arg(long, value_name = "ADDRESS", value_parser = probe_address)]
    pub health_probe_bind_address: Option<BindAddress>,

    /// Log defaults: console and debug if true, json and info if false. Overrides LOG_FORMAT
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", value_parser = boolean)]
    pub zap_devel: Option<bool>,

    /// Format of log lines. Overrides LOG_FORMAT
    #[arg(long, value_name = "ENCODER", value_enum, ignore_case = true)]
    pub zap_encoder: Option<Encoder>,

    /// Log level: debug, info, error, panic, or a number above 0 for more than info. RUST_LOG overrides it
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
    /// The format of log lines that the flags ask for.
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

    /// The log level that the flags ask for.
    pub fn log_level(&self) -> Option<LogLevel> {
        self.zap_log_level.or(self.zap_devel.map(|is_devel| match is_devel {
            true => LogLevel::Debug,
            false => LogLevel::Info,
        }))
    }
}

/// Names that zap has for formats of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoder {
    /// For people.
    Console,
    /// One JSON object a line.
    Json,
}

/// How much the controller logs about its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The name that `RUST_LOG` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// zap counts upwards from info: 1 is debug, and more has no name of its own there.
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

/// For controller-runtime an empty address turns probes off.
fn probe_address(text: &str) -> Result<BindAddress, String> {
    if text.is_empty() { "0" } else { text }.parse()
}
