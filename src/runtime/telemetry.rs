//! Logs on standard error.

use std::{fmt, str::FromStr};

use tracing_subscriber::{
    Layer as _,
    filter::{ParseError, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("log format {text:?}: want text or json")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// The filter for a verbosity as Kubernetes components count it: 4 is debugging, from 6 on everything.
fn filter(verbosity: u8) -> &'static str {
    match verbosity {
        0..=3 => "info,kube_client=warn,kube_runtime=warn,tower=warn,hyper=warn,h2=warn",
        4 | 5 => "info,kruise_rs=debug,kube_client=info,kube_runtime=info",
        _ => "debug,kruise_rs=trace,h2=info,hyper=info,rustls=info",
    }
}

/// Starts logging. `RUST_LOG` wins over the verbosity. A second call changes nothing.
///
/// # Errors
/// If `RUST_LOG` cannot be read.
pub fn init(format: LogFormat, verbosity: u8) -> Result<(), ParseError> {
    // By target and level only: filters over field values would bring a regular expression engine into every process.
    let filter: Targets = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => directives.parse()?,
        _ => filter(verbosity).parse()?,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // A second subscriber is refused: the first one stays, which is what a second call means.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_is_readable() {
        for verbosity in 0..10 {
            filter(verbosity).parse::<Targets>().unwrap();
        }
    }

    #[test]
    fn an_unknown_format_is_named() {
        assert_eq!("yaml".parse::<LogFormat>().unwrap_err(), "log format \"yaml\": want text or json");
        assert_eq!("json".parse::<LogFormat>().unwrap().to_string(), "json");
    }
}
