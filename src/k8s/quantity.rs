//! Amounts as Kubernetes writes them: `100m`, `1`, `1.5Gi`, `1e3`. Only compared, never written.

/// An amount in billionths; what is more than fits counts as the most there is. None: it is no amount.
pub fn parse(text: &str) -> Option<i128> {
    const NANO: i128 = 1_000_000_000;
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() || number == "." || part.contains('.') {
        return None;
    }
    let digits = |text: &str| -> Option<i128> {
        if text.is_empty() { Some(0) } else { Some(text.parse().unwrap_or(i128::MAX)) }
    };
    // Digits behind the ninth are rounded up, as everywhere in Kubernetes.
    let kept = part.get(..9).unwrap_or(part);
    let rounded = i128::from(part.len() > 9 && part[9..].bytes().any(|digit| digit != b'0'));
    let billionths = digits(&format!("{kept:0<9}"))?.saturating_add(rounded);
    let base = digits(whole)?.saturating_mul(NANO).saturating_add(billionths);
    let scaled = match suffix {
        "" => base,
        "n" => divided(base, 9),
        "u" => divided(base, 6),
        "m" => divided(base, 3),
        "k" => base.saturating_mul(1_000),
        "M" => base.saturating_mul(1_000_000),
        "G" => base.saturating_mul(1_000_000_000),
        "T" => base.saturating_mul(1_000_000_000_000),
        "P" => base.saturating_mul(1_000_000_000_000_000),
        "E" => base.saturating_mul(1_000_000_000_000_000_000),
        "Ki" => base.saturating_mul(1 << 10),
        "Mi" => base.saturating_mul(1 << 20),
        "Gi" => base.saturating_mul(1 << 30),
        "Ti" => base.saturating_mul(1 << 40),
        "Pi" => base.saturating_mul(1 << 50),
        "Ei" => base.saturating_mul(1 << 60),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            match u32::try_from(exponent) {
                Ok(exponent) => base.saturating_mul(10_i128.saturating_pow(exponent)),
                Err(_) => divided(base, exponent.unsigned_abs()),
            }
        }
    };
    Some(if negative { -scaled } else { scaled })
}

/// Divided by a power of ten, rounded up.
fn divided(base: i128, exponent: u32) -> i128 {
    let by = 10_i128.saturating_pow(exponent);
    base / by + i128::from(base % by != 0)
}

/// The spelling that the API server gives to an amount: the largest suffix that leaves a whole number, of the kind that was
/// written. None: it is no amount.
pub fn canonical(text: &str) -> Option<String> {
    const NANO: i128 = 1_000_000_000;
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let mut value = parse(text)?;
    if value == 0 {
        return Some("0".into());
    }
    let scaled = |value: &mut i128, by: i128, most: usize| {
        let mut steps = 0;
        while *value % by == 0 && steps < most {
            *value /= by;
            steps += 1;
        }
        steps
    };
    if text.ends_with('i') && value.abs() >= 1024 * NANO {
        value = value / NANO + i128::from(value % NANO > 0);
        let steps = scaled(&mut value, 1024, BINARY.len() - 1);
        return Some(format!("{value}{}", BINARY[steps]));
    }
    let steps = scaled(&mut value, 1000, DECIMAL.len() - 1);
    // `1E` is a number with a suffix, `1E3` one with an exponent.
    let has_exponent = text.ends_with(|c: char| c.is_ascii_digit()) && text.contains(['e', 'E']);
    let suffix = match has_exponent {
        true if steps == 3 => String::new(),
        true => format!("e{}", 3 * i32::try_from(steps).unwrap_or_default() - 9),
        false => DECIMAL[steps].to_owned(),
    };
    Some(format!("{value}{suffix}"))
}

/// Whether two texts are one amount.
pub fn is_same(a: &str, b: &str) -> bool {
    a == b || parse(a).is_some_and(|a| Some(a) == parse(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_compared_whatever_their_spelling() {
        for (a, b) in [
            ("1", "1000m"),
            ("0.05", "50m"),
            ("1.5Gi", "1536Mi"),
            ("1Gi", "1073741824"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("5e-1", "500m"),
            ("-1", "-1000m"),
            ("+2", "2"),
            (".5", "0.5"),
            ("0", "0Mi"),
        ] {
            assert!(is_same(a, b), "{a} {b}: {:?} {:?}", parse(a), parse(b));
        }
        for (a, b) in [("1", "1Mi"), ("1M", "1Mi"), ("100m", "1"), ("1", "-1"), ("1E", "1e")] {
            assert!(!is_same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn amounts_are_spelled_as_the_api_server_spells_them() {
        for (text, wanted) in [
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1", "1"),
            ("1.5", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("100000", "100k"),
            ("1e3", "1e3"),
            ("1e4", "10e3"),
            ("5e-1", "500e-3"),
            ("1E", "1E"),
            ("0Mi", "0"),
            ("-1500m", "-1500m"),
            ("33554432", "33554432"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(wanted), "{text}");
            assert_eq!(canonical(wanted).as_deref(), Some(wanted));
        }
        assert_eq!(canonical("x"), None);
    }

    #[test]
    fn what_is_no_amount() {
        for text in ["", ".", "m", "1x", "1.2.3", "1 Gi", "e3", "1e", "ü", "1ei"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(text in "[-+]?[0-9.]{0,45}[a-zA-Z]{0,2}[-+]?[0-9]{0,12}") {
            let _ = parse(&text);
        }
    }
}
