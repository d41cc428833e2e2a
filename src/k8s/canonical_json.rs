//! JSON as Go's encoder writes a decoded document: the bytes that revision hashes are computed from.
//!
//! Keys sorted at every level, no spaces, `<`, `>`, `&` and the two line separators escaped, and every number through a
//! 64-bit float. Anything else would give an unchanged template another hash, and so restart every Pod of a workload
//! that is taken over.

use serde_json::{Number, Value};

/// Encodes a document.
pub fn encode(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

/// Bytes of a text that is encoded, with its quotes.
pub fn length_of_text(text: &str) -> usize {
    let mut out = String::new();
    write_string(text, &mut out);
    out.len()
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            // Sorted by bytes, whatever order the map keeps.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (i, (key, value)) in fields.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// The shortest decimal that reads back as the same float: plain between 1e-6 and 1e21, with an exponent outside.
fn write_number(number: &Number, out: &mut String) {
    let Some(value) = number.as_f64().filter(|f| f.is_finite()) else {
        out.push_str(&number.to_string());
        return;
    };
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        // Rust writes 1e-7 and 1e21, Go 1e-07 and 1e+21; of a negative exponent it then drops one leading zero.
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((mantissa, exponent)) if exponent.starts_with('-') => out.push_str(&format!("{mantissa}e{exponent}")),
            Some((mantissa, exponent)) => out.push_str(&format!("{mantissa}e+{exponent:0>2}")),
            None => out.push_str(&text),
        }
    } else if value == 0.0 && value.is_sign_negative() {
        out.push_str("-0");
    } else {
        out.push_str(&format!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_and_text_is_escaped_as_in_go() {
        let value = json!({"b": 1, "a": [true, null, "x<y>&z\u{2028}\n\té\u{1}\u{8}\u{c}\u{7f}\"\\"], "B": {}});
        assert_eq!(
            encode(&value),
            "{\"B\":{},\"a\":[true,null,\"x\\u003cy\\u003e\\u0026z\\u2028\\n\\té\\u0001\\b\\f\u{7f}\\\"\\\\\"],\"b\":1}"
        );
    }

    #[test]
    fn numbers_go_through_a_float() {
        let encoded = |text: &str| encode(&serde_json::from_str(text).unwrap());
        for (text, want) in [
            ("30", "30"),
            ("-1", "-1"),
            ("0.5", "0.5"),
            ("1.0", "1"),
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551615", "18446744073709552000"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("1.5e300", "1.5e+300"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("1e-10", "1e-10"),
            ("-0.0", "-0"),
        ] {
            assert_eq!(encoded(text), want, "{text}");
        }
    }
}
