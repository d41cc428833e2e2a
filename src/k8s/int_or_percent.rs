//! A number, or a part of another number: `3`, `"20%"`, `"12.5%"`. One parser for admission and controllers.
//!
//! Kubernetes and most controllers of OpenKruise read no percentage with a fraction. Admission refuses them
//! for the kinds of those; controllers still read what is stored.

use std::fmt;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

/// A number or a percentage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntOrPercent {
    /// So many.
    Int(i32),
    /// So many of a hundred.
    Percent(f64),
}

/// A value that is neither. The field is the caller's to name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is neither a whole number nor a percentage such as \"20%\"")]
pub struct NotIntOrPercent(String);

/// Which whole number a part becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The next smaller one.
    Down,
    /// The next larger one.
    Up,
    /// The nearest one; a half is rounded up.
    HalfUp,
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl IntOrPercent {
    /// Reads the JSON of a field.
    ///
    /// # Errors
    /// Naming the value and what is allowed.
    pub fn parse(value: &Value) -> Result<Self, NotIntOrPercent> {
        let wrong = || NotIntOrPercent(value.to_string());
        match value {
            Value::Number(number) => {
                number.as_i64().and_then(|n| i32::try_from(n).ok()).map(Self::Int).ok_or_else(wrong)
            }
            Value::String(text) => {
                let digits = text.strip_suffix('%').ok_or_else(wrong)?;
                // A float would also be read from "inf", "1e3" and " 5".
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
                let part = digits.parse::<f64>().ok().filter(|_| plain).ok_or_else(wrong)?;
                Ok(Self::Percent(part))
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(wrong()),
        }
    }

    /// Reads a typed field.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of(value: &IntOrString) -> Result<Self, NotIntOrPercent> {
        match value {
            IntOrString::Int(number) => Ok(Self::Int(*number)),
            IntOrString::String(text) => Self::parse(&Value::String(text.clone())),
        }
    }

    /// The number that it means out of `total`.
    pub fn resolve(self, total: i32, round: Round) -> i32 {
        match self {
            Self::Int(number) => number,
            Self::Percent(percent) => {
                let part = percent * f64::from(total) / 100.0;
                // A float cast saturates, so no percentage overflows.
                match round {
                    Round::Down => part.floor() as i32,
                    Round::Up => part.ceil() as i32,
                    Round::HalfUp => (part + 0.5).floor() as i32,
                }
            }
        }
    }

    /// Whether it is less than nothing.
    pub fn is_negative(self) -> bool {
        match self {
            Self::Int(number) => number < 0,
            Self::Percent(percent) => percent < 0.0,
        }
    }
}

/// The number that a field means out of `total`. None: it cannot be read, or is negative.
pub fn number(field: &IntOrString, total: usize, round: Round) -> Option<usize> {
    let total = i32::try_from(total).unwrap_or(i32::MAX);
    let value = IntOrPercent::of(field).ok().filter(|value| !value.is_negative())?;
    usize::try_from(value.resolve(total, round)).ok()
}

/// Whether a text is a percentage as Kubernetes has it: digits and `%`, without a sign or a fraction.
pub fn is_whole_percentage(text: &str) -> bool {
    text.strip_suffix('%').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A field as it was written.
pub fn text(field: &IntOrString) -> String {
    match field {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_and_percentages_are_read() {
        for (value, want) in [
            (json!(3), IntOrPercent::Int(3)),
            (json!(-1), IntOrPercent::Int(-1)),
            (json!("20%"), IntOrPercent::Percent(20.0)),
            (json!("12.5%"), IntOrPercent::Percent(12.5)),
            (json!("-5%"), IntOrPercent::Percent(-5.0)),
        ] {
            assert_eq!(IntOrPercent::parse(&value), Ok(want), "{value}");
        }
    }

    #[test]
    fn case_37_anything_else_is_refused_by_name() {
        for value in [
            json!("3"),
            json!("%"),
            json!("inf%"),
            json!("1e3%"),
            json!(" 5%"),
            json!(1.5),
            json!(3_000_000_000_i64),
            json!(null),
            json!({}),
        ] {
            let error = IntOrPercent::parse(&value).unwrap_err();
            assert_eq!(error.0, format!("{value}"));
            assert!(error.to_string().contains("20%"), "{error}");
        }
    }

    #[test]
    fn item_1_3_a_whole_percentage_is_digits_and_a_sign_of_percent() {
        for text in ["0%", "7%", "100%", "007%", "99999999999999999999%"] {
            assert!(is_whole_percentage(text) && IntOrPercent::parse(&json!(text)).is_ok(), "{text}");
        }
        for text in ["", "%", "5", "12.5%", "50.0%", "5.%", ".5%", "-5%", "-0%", "+5%", " 5%", "5%%", "5 %", "٥%"] {
            assert!(!is_whole_percentage(text), "{text}");
        }
    }

    #[test]
    fn a_field_that_cannot_be_read_or_is_negative_means_nothing() {
        let number = |field: &IntOrString| number(field, 19, Round::Up);
        let text = |text: &str| IntOrString::String(text.into());
        assert_eq!((number(&text("10%")), number(&IntOrString::Int(3))), (Some(2), Some(3)));
        for odd in [IntOrString::Int(-1), text("-1%"), text("10"), text("x%")] {
            assert_eq!(number(&odd), None, "{odd:?}");
        }
    }

    #[test]
    fn parts_are_rounded_as_asked() {
        let percent = IntOrPercent::Percent(25.0);
        assert_eq!((percent.resolve(10, Round::Down), percent.resolve(10, Round::Up)), (2, 3));
        assert_eq!([9, 10, 11].map(|total| percent.resolve(total, Round::HalfUp)), [2, 3, 3]);
        assert_eq!(IntOrPercent::Int(7).resolve(10, Round::Up), 7);
        assert_eq!(IntOrPercent::Percent(1e300).resolve(10, Round::Up), i32::MAX);
    }
}
