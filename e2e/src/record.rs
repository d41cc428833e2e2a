//! `make record`: a restart with `kubectl kruise` in a real terminal, as an SVG that moves.
//!
//! Commands run under `script`, which gives them a terminal; a terminal emulator turns what they write into screens, and
//! each screen that differs from the one before becomes a frame. Nothing is drawn by hand.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cmd::{CommandExt, cmd, kubectl};
use crate::kit::{Build, app, plugin_command, pod, shell, workload};
use crate::paths::Paths;
use crate::process::until;

const NAMESPACE: &str = "shop";
const COLUMNS: u16 = 108;
const ROWS: u16 = 16;
/// Screens closer together than this are one frame.
const FRAME: Duration = Duration::from_millis(100);
/// A prompt stands this long before its command runs, and the last screen before it all begins again.
const READING: Duration = Duration::from_millis(1500);
const AT_THE_END: Duration = Duration::from_secs(5);
/// Prompts, and the arguments of `kubectl kruise` behind them.
const SESSION: [&str; 3] = ["restart pod/web --wait", "restart deployment/api --max-unavailable 2 --wait", "status"];

pub fn run(paths: &Paths) -> Result<()> {
    // what an earlier recording left
    kubectl(paths, ["delete", "namespace", NAMESPACE, "--ignore-not-found"]).text()?;
    kubectl(paths, ["create", "namespace", NAMESPACE]).text()?;
    until("the service account", Duration::from_secs(20), &[], || {
        kubectl(paths, ["get", "serviceaccount", "default", "-n", NAMESPACE]).text()
    })?;
    // ready a moment after its start, as most applications are
    let main = shell("main", "sleep 2; touch /tmp/ready").with(
        "/readinessProbe",
        serde_json::json!({ "periodSeconds": 1, "exec": { "command": ["cat", "/tmp/ready"] } }),
    );
    let web: Value = pod("web", vec![main, app("proxy")]);
    kubectl(paths, ["apply", "-n", NAMESPACE, "-f", "-"]).feed(&web.to_string())?;
    let api = workload("Deployment", "api", 4, vec![app("server")]).with("/apiVersion", "apps/v1");
    kubectl(paths, ["apply", "-n", NAMESPACE, "-f", "-"]).feed(&api.to_string())?;
    kubectl(paths, ["rollout", "status", "deployment/api", "-n", NAMESPACE, "--timeout=60s"]).text()?;
    kubectl(paths, ["wait", "pod/web", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s"]).text()?;

    let mut film = Film::new();
    for args in SESSION {
        film.show(format!("\x1b[1;32m$\x1b[0m kubectl kruise {args}\r\n").as_bytes(), Duration::ZERO);
        film.rest(READING);
        let words: Vec<&str> = args.split(' ').chain(["-n", NAMESPACE]).collect();
        film.record(&mut in_terminal(&plugin_command(paths, &words)?))?;
    }
    film.rest(AT_THE_END);
    let file = paths.repo.join("docs/images/restart.svg");
    fs::create_dir_all(file.parent().context("a file has a directory")?)?;
    fs::write(&file, film.svg())?;
    println!("{}: {} frames, {:.1} s", file.display(), film.frames.len(), film.length.as_secs_f64());
    kubectl(paths, ["delete", "namespace", NAMESPACE, "--wait=false"]).text().map(drop)
}

/// The command under `script`, so that it sees a terminal of the film's width.
fn in_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let line = format!("stty cols {COLUMNS} rows {ROWS}; exec {}", words.join(" "));
    let mut wrapped = cmd("script", ["-qefc", &line, "/dev/null"]);
    for (name, value) in command.get_envs() {
        wrapped.env(name, value.unwrap_or_default());
    }
    wrapped.env("TERM", "xterm-256color");
    wrapped
}

struct Film {
    terminal: vt100::Parser,
    /// When each screen came, and how it looked.
    frames: Vec<(Duration, String)>,
    length: Duration,
}

impl Film {
    fn new() -> Self {
        Self { terminal: vt100::Parser::new(ROWS, COLUMNS, 0), frames: Vec::new(), length: Duration::ZERO }
    }

    /// The screen after some output, `at` after the film's length so far.
    fn show(&mut self, output: &[u8], at: Duration) {
        self.terminal.process(output);
        let screen = lines(self.terminal.screen());
        let at = self.length + at;
        match self.frames.last_mut() {
            Some((_, last)) if *last == screen => {}
            // What comes in pieces is one screen.
            Some((begun, last)) if at - *begun < FRAME => *last = screen,
            _ => self.frames.push((at, screen)),
        }
    }

    fn rest(&mut self, time: Duration) {
        self.length += time;
    }

    fn record(&mut self, command: &mut Command) -> Result<()> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let start = Instant::now();
        let mut output = child.stdout.take().context("standard output")?;
        let mut buffer = [0; 4096];
        loop {
            let read = output.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            self.show(&buffer[..read], start.elapsed());
        }
        self.length += start.elapsed();
        ensure!(child.wait()?.success(), "{command:?} failed");
        Ok(())
    }

    /// A strip with all frames side by side, behind a window that steps along it. Where nothing moves the last one is
    /// seen.
    fn svg(&self) -> String {
        const CELL: (f64, f64) = (8.4, 18.0);
        let (width, height) = (f64::from(COLUMNS) * CELL.0 + 32.0, f64::from(ROWS) * CELL.1 + 56.0);
        let mut svg = String::new();
        let _ = writeln!(
            svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="kubectl kruise restarts a container">
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre }}
.g {{ fill: #a3be8c }} .r {{ fill: #bf616a }} .c {{ fill: #88c0d0 }} .y {{ fill: #ebcb8b }} .m {{ fill: #b48ead }} .d {{ fill: #7b8494 }}
.strip {{ transform: translateX({last:.1}px); animation: film {length:.2}s steps(1, end) infinite }}
@keyframes film {{"##,
            last = -(self.frames.len().saturating_sub(1) as f64) * width,
            length = self.length.as_secs_f64(),
        );
        for (i, (at, _)) in self.frames.iter().enumerate() {
            let percent = at.as_secs_f64() / self.length.as_secs_f64().max(0.001) * 100.0;
            let _ = writeln!(svg, "{percent:.2}% {{ transform: translateX({:.1}px) }}", -(i as f64) * width);
        }
        let _ = writeln!(
            svg,
            r##"}}
</style>
<rect width="100%" height="100%" rx="8" fill="#2e3440"/>
<circle cx="20" cy="18" r="6" fill="#bf616a"/><circle cx="40" cy="18" r="6" fill="#ebcb8b"/><circle cx="60" cy="18" r="6" fill="#a3be8c"/>
<g class="strip">"##
        );
        for (i, (_, screen)) in self.frames.iter().enumerate() {
            let _ = writeln!(svg, r#"<g transform="translate({:.1} 0)">"#, i as f64 * width + 16.0);
            for (row, line) in screen.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
                let _ =
                    writeln!(svg, r#"<text y="{:.0}" xml:space="preserve">{line}</text>"#, 52.0 + row as f64 * CELL.1);
            }
            svg += "</g>\n";
        }
        svg + "</g>\n</svg>\n"
    }
}

/// The lines of a screen as the inside of SVG text, colours as spans.
fn lines(screen: &vt100::Screen) -> String {
    let mut text = String::new();
    for row in 0..ROWS {
        let mut runs: Vec<(&str, String)> = Vec::new();
        for column in 0..COLUMNS {
            let Some(cell) = screen.cell(row, column) else { continue };
            let class = match cell.fgcolor() {
                vt100::Color::Idx(2 | 10) => "g",
                vt100::Color::Idx(1 | 9) => "r",
                vt100::Color::Idx(6 | 14) => "c",
                vt100::Color::Idx(3 | 11) => "y",
                vt100::Color::Idx(5 | 13) => "m",
                _ if cell.dim() => "d",
                _ => "",
            };
            let content = if cell.has_contents() { cell.contents() } else { " " };
            match runs.last_mut() {
                Some((last, run)) if *last == class => run.push_str(content),
                _ => runs.push((class, content.to_owned())),
            }
        }
        if let Some((_, last)) = runs.last_mut() {
            *last = last.trim_end().to_owned();
        }
        for (class, run) in runs.iter().filter(|(_, run)| !run.is_empty()) {
            let run = run.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            text += &if class.is_empty() { run } else { format!(r#"<tspan class="{class}">{run}</tspan>"#) };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_anew_is_one_line_of_many_frames() {
        let mut film = Film::new();
        film.show(b"$ restart\r\n", Duration::ZERO);
        film.rest(READING);
        film.show(b"\x1b[36mx\x1b[0m <1s>\r", Duration::from_millis(200));
        film.show(b"\x1b[2K\x1b[32mok\x1b[0m\r\n", Duration::from_millis(500));
        film.show(b"", Duration::from_millis(900));
        film.rest(AT_THE_END);
        let screens: Vec<&str> = film.frames.iter().map(|(_, screen)| screen.trim_end()).collect();
        assert_eq!(
            screens,
            [
                "$ restart",
                "$ restart\n<tspan class=\"c\">x</tspan> &lt;1s&gt;",
                "$ restart\n<tspan class=\"g\">ok</tspan>"
            ]
        );
        assert_eq!(film.frames[2].0, READING + Duration::from_millis(500));
        let svg = film.svg();
        assert_eq!(svg.matches("<g transform").count(), 3);
        assert!(svg.ends_with("</g>\n</svg>\n"));
    }
}
