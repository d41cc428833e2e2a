//! Text in columns, as kubectl writes it, and times as people say them.

use std::time::Duration;

/// A text for a terminal: what comes from a cluster must not move the cursor or begin a line.
pub fn clean(text: &str) -> String {
    text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Rows under a header, in columns three blanks apart. Cells of the last column may be long.
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain(header.get(i).map(|name| name.chars().count())).max().unwrap_or(0)
    };
    let count = rows.iter().map(Vec::len).chain([header.len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}   "));
        format!("{}\n", padded.collect::<String>().trim_end())
    };
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).collect::<String>();
    if header.is_empty() { body } else { line(header.to_vec()) + &body }
}

/// An age as kubectl says it: 42s, 3m5s, 17m, 5h, 3d.
pub fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        120..7200 => format!("{minutes}m"),
        7200..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// A span that a user watches: 0.4s, 12.3s, 2m05s, 1h02m.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", span.as_millis() as f64 / 1000.0),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".into(), "long cell".into(), "x".into()], vec!["bbbb".into(), "".into(), "".into()]];
        assert_eq!(columns(&["N", "CELL", "Z"], &rows), "N      CELL        Z\na      long cell   x\nbbbb\n");
        assert_eq!(columns(&[], &rows), "a      long cell   x\nbbbb\n");
        assert_eq!(columns(&["ONLY"], &[]), "ONLY\n");
        assert_eq!(columns(&[], &[vec!["a\nb\u{1b}[2J".into()]]), "a b [2J\n");
    }

    #[test]
    fn ages_read_as_in_kubectl() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (599, "9m59s"),
            (3600, "60m"),
            (7200, "2h"),
            (86_400 * 3, "3d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn spans_are_exact_while_they_are_short() {
        for (millis, text) in [(0, "0.0s"), (1449, "1.4s"), (59_900, "59.9s"), (125_000, "2m05s"), (3_725_000, "1h02m")]
        {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }
}
