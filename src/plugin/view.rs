//! The terminal: a picture that moves where somebody looks at it, one line per change where it is written to a file; and
//! objects in the forms that kubectl has.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    time::Duration,
};

use clap::ValueEnum;
use console::{Color, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{
    requests::reference,
    rules::{
        exit::{Exit, Stop},
        progress::{Line, Mark, plain},
        table::{clean, span},
    },
};

/// Form of objects on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// KIND.GROUP/NAME, one a line.
    Name,
}

/// Writes to standard output. Where nobody reads any more, the command ends.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Stop::new(Exit::Failed, format!("standard output: {error}")))
}

/// Writes to standard error, which stays free of what scripts read.
pub(super) fn report(text: &str) {
    // If this fails, nobody can be informed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says what has failed, where others go on. Gives its exit code.
pub(super) fn report_failure(stop: &Stop) -> Exit {
    report(&format!("error: {stop}"));
    stop.exit
}

/// Objects on standard output; several, or `as_list`, as a List.
pub(super) fn print_objects(format: Format, objects: &[Value], as_list: bool) -> Result<(), Stop> {
    if format == Format::Name {
        return print(&objects.iter().map(|object| reference(object) + "\n").collect::<String>());
    }
    let mut objects = objects.to_vec();
    for object in &mut objects {
        // As kubectl: nobody wants to read them.
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    let whole = match objects.len() {
        1 if !as_list => objects.remove(0),
        _ => json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects }),
    };
    let failed = |error: String| Stop::new(Exit::Failed, error);
    let text = match format {
        Format::Json => serde_json::to_string_pretty(&whole).map_err(|e| failed(e.to_string()))? + "\n",
        Format::Yaml => serde_yaml::to_string(&whole).map_err(|e| failed(e.to_string()))?,
        Format::Name => String::new(),
    };
    print(&text)
}

/// Where progress is shown.
pub(super) struct View {
    live: Option<MultiProgress>,
    to_stderr: bool,
    bars: Vec<ProgressBar>,
    /// By the place of the line: two requests may be about the same container.
    said: BTreeMap<usize, String>,
}

impl View {
    /// On standard output, or on standard error when objects go to standard output.
    pub(super) fn new(to_stderr: bool) -> Self {
        let (is_terminal, target) = match to_stderr {
            true => (std::io::stderr().is_terminal(), ProgressDrawTarget::stderr()),
            false => (std::io::stdout().is_terminal(), ProgressDrawTarget::stdout()),
        };
        let moves = is_terminal && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let live = moves.then(|| MultiProgress::with_draw_target(target));
        Self { live, to_stderr, bars: Vec::new(), said: BTreeMap::new() }
    }

    /// Whether the picture moves by itself.
    pub(super) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// One line, above the picture.
    pub(super) fn line(&self, text: &str) -> Result<(), Stop> {
        let text = clean(text);
        match (&self.live, self.to_stderr) {
            (Some(live), _) => live.println(text).map_err(|e| Stop::new(Exit::Failed, format!("terminal: {e}"))),
            (None, true) => {
                report(&text);
                Ok(())
            }
            (None, false) => print(&(text + "\n")),
        }
    }

    /// The present state of everything, with the time to show for each line.
    pub(super) fn update(&mut self, lines: &[(Line, Duration)]) -> Result<(), Stop> {
        let Some(live) = self.live.clone() else {
            for (place, (line, time)) in lines.iter().enumerate() {
                if self.said.get(&place) != Some(&line.text) {
                    self.said.insert(place, line.text.clone());
                    self.line(&plain(line, *time))?;
                }
            }
            return Ok(());
        };
        let width = lines.iter().map(|(line, _)| line.subject.chars().count()).max().unwrap_or(0);
        while self.bars.len() < lines.len() {
            let bar = live.add(ProgressBar::no_length());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            self.bars.push(bar);
        }
        for (bar, (line, time)) in self.bars.iter().zip(lines) {
            bar.set_message(painted(line, *time, width));
            bar.tick();
        }
        Ok(())
    }

    /// Leaves the last picture standing.
    pub(super) fn finish(&mut self, lines: &[(Line, Duration)]) -> Result<(), Stop> {
        self.update(lines)?;
        let Some(live) = self.live.take() else { return Ok(()) };
        // What stays is written once more as ordinary lines, so that nothing ever moves it again. A bar that is dropped
        // unfinished would draw itself a last time.
        for bar in self.bars.drain(..) {
            bar.finish_and_clear();
        }
        let cleared = live.clear();
        cleared.map_err(|error| Stop::new(Exit::Failed, format!("terminal: {error}")))?;
        let width = lines.iter().map(|(line, _)| line.subject.chars().count()).max().unwrap_or(0);
        for (line, time) in lines {
            let text = painted(line, *time, width) + "\n";
            match self.to_stderr {
                true => report(text.trim_end()),
                false => print(&text)?,
            }
        }
        Ok(())
    }
}

/// A line of the picture. Everything is a function of the line and its time, the moving mark too.
fn painted(line: &Line, time: Duration, width: usize) -> String {
    const TURNS: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    let style = |color| Style::new().fg(color);
    let turn = usize::try_from(time.as_millis() / 100).unwrap_or_default() % TURNS.len();
    let mark = match line.mark {
        Mark::Waiting => Style::new().dim().apply_to("·"),
        Mark::Working => style(Color::Cyan).apply_to(TURNS[turn]),
        Mark::Done => style(Color::Green).apply_to("✓"),
        Mark::Failed => style(Color::Red).apply_to("✗"),
    };
    let bar = line.bar.map_or(String::new(), |(done, all)| format!("{}  ", drawn(done, all)));
    format!("{mark} {:>6}  {:<width$}  {bar}{}", span(time), line.subject, clean(&line.text))
}

/// `[=======>    ]`
fn drawn(done: u64, all: u64) -> String {
    const WIDTH: u64 = 24;
    let full = (done.min(all) * WIDTH).checked_div(all).unwrap_or(0);
    let count = |n: u64| usize::try_from(n).unwrap_or_default();
    let head = if full < WIDTH { ">" } else { "" };
    let rest = WIDTH - full - u64::from(full < WIDTH);
    format!("[{}{head}{}]", "=".repeat(count(full)), " ".repeat(count(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_always_as_wide() {
        for (done, all, bar) in [
            (0, 0, "[>                       ]"),
            (0, 10, "[>                       ]"),
            (5, 10, "[============>           ]"),
            (10, 10, "[========================]"),
            (11, 10, "[========================]"),
        ] {
            assert_eq!(drawn(done, all), bar, "{done} of {all}");
        }
    }

    #[test]
    fn a_line_of_the_picture() {
        let line = |mark, text: &str, bar| Line { subject: "web/main".into(), mark, text: text.into(), bar };
        let shown = |line: &Line, millis| {
            console::strip_ansi_codes(&painted(line, Duration::from_millis(millis), 10)).into_owned()
        };
        assert_eq!(shown(&line(Mark::Done, "restarted", None), 1849), "✓   1.8s  web/main    restarted");
        assert_eq!(shown(&line(Mark::Working, "a\u{1b}[2Jb\nc", None), 250), "⠹   0.2s  web/main    a [2Jb c");
        assert_eq!(
            shown(&line(Mark::Working, "1 of 2", Some((1, 2))), 0),
            "⠋   0.0s  web/main    [============>           ]  1 of 2"
        );
    }
}
