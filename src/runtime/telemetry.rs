//! Logs on standard error.

use std::{
    fmt::{self, Debug, Write as _},
    str::FromStr,
};

use tracing::{Subscriber, field::Field};
use tracing_subscriber::{
    Layer,
    field::MakeExt as _,
    filter::{ParseError, Targets},
    fmt::{
        MakeWriter,
        format::{Writer, debug_fn},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
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

/// The filter for a verbosity as Kubernetes components count it: 4 is debugging, from 6 on everything. What kube's client says of an
/// answer that cannot be read is the whole answer, with the objects of anybody in it.
fn filter(verbosity: u8) -> &'static str {
    match verbosity {
        0..=3 => "info,kube_client=warn,kube_client::client=error,kube_runtime=warn,tower=warn,hyper=warn,h2=warn",
        4 | 5 => "info,kruise_rs=debug,kube_client=info,kube_client::client=error,kube_runtime=info",
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
    let lines = match format {
        LogFormat::Text => text_lines(std::io::stderr, std::io::IsTerminal::is_terminal(&std::io::stderr())),
        LogFormat::Json => {
            tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed()
        }
    };
    // A second subscriber is refused: the first one stays, which is what a second call means.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

/// Lines of text, one an event: names and messages that callers send can neither begin a line nor command a terminal.
fn text_lines<S, W>(writer: W, ansi: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(ansi)
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .boxed()
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        "message" => {}
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
        name => write!(writer, "{name}=")?,
    }
    write!(Escaped(writer), "{value:?}")
}

/// Writes text with its control characters, line separators and marks of writing direction escaped.
struct Escaped<'a, 'w>(&'a mut Writer<'w>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match is_unsafe(c) {
            true => write!(self.0, "{}", c.escape_default()),
            false => self.0.write_char(c),
        })
    }
}

fn is_unsafe(c: char) -> bool {
    let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::registry().with(text_lines(move || writer.clone(), false));
        tracing::subscriber::with_default(subscriber, log);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_that_callers_send_forges_no_line_and_commands_no_terminal() {
        let user = "eve\n2026-01-01T00:00:00Z ERROR kruise_rs: the cluster is on fire\r\u{85}\u{2028}";
        let namespace = "a\x1b[2J\u{9b}31m\x07\u{202e}b";
        let text = written(|| {
            let span = tracing::info_span!("review", by = %user);
            let _in = span.enter();
            tracing::info!(%user, quoted = user, namespace = %namespace, debug = ?namespace, "refused {user}");
            tracing::warn!(error = %io::Error::other(user), "after");
        });
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.chars().all(|c| c == '\n' || !is_unsafe(c)), "{text:?}");
        assert!(text.contains("refused eve\\n2026"), "{text}");
        assert!(text.contains("namespace=a\\u{1b}[2J\\u{9b}31m\\u{7}\\u{202e}b"), "{text}");
    }

    #[test]
    fn ordinary_fields_stay_as_they_are() {
        let text = written(|| tracing::info!(pod = "a/ü", code = 403, name = %"web", "answers \"so\""));
        assert!(text.ends_with("answers \"so\" pod=\"a/ü\" code=403 name=web\n"), "{text}");
    }

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
