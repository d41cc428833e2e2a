//! The words of an expression.

use std::collections::VecDeque;

use super::{Amount, ExpressionError, Ratio};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Without a unit.
    Number(Ratio),
    /// With one.
    Amount(Amount),
    /// A variable or function.
    Name(String),
    /// One of `+-*/(),`.
    Sign(char),
}

/// The words that are left, each with where it stands, and the word that was taken last.
pub(super) struct Tokens {
    left: VecDeque<(usize, Token)>,
    last: Option<(usize, Token)>,
    length: usize,
}

/// The most digits of a number, and the most zeros that its exponent adds.
const MOST_DIGITS: usize = 18;

impl Tokens {
    pub(super) fn of(text: &str) -> Result<Self, ExpressionError> {
        let mut left = VecDeque::new();
        let mut rest = text;
        loop {
            rest = rest.trim_start();
            let at = text.len() - rest.len() + 1;
            let Some(first) = rest.chars().next() else { break };
            let end = match first {
                '+' | '-' | '*' | '/' | '(' | ')' | ',' => {
                    left.push_back((at, Token::Sign(first)));
                    1
                }
                '0'..='9' | '.' => {
                    let end = length_of_number(rest);
                    left.push_back((at, number(&rest[..end])?));
                    end
                }
                'a'..='z' | 'A'..='Z' => {
                    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                    left.push_back((at, Token::Name(rest[..end].to_owned())));
                    end
                }
                other => {
                    let wanted = "numbers, units, names, + - * / ( ) and ,";
                    return Err(ExpressionError::Unexpected { at, found: format!("{other:?}"), wanted });
                }
            };
            rest = &rest[end..];
        }
        Ok(Self { left, last: None, length: text.len() })
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.left.front().map(|(_, token)| token)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        self.last = self.left.pop_front();
        self.last.as_ref().map(|(_, token)| token.clone())
    }

    pub(super) fn expect(&mut self, sign: char, wanted: &'static str) -> Result<(), ExpressionError> {
        match self.next() {
            Some(Token::Sign(found)) if found == sign => Ok(()),
            _ => Err(self.unexpected(wanted)),
        }
    }

    pub(super) fn end(&mut self) -> Result<(), ExpressionError> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("+, -, *, / or the end")),
        }
    }

    /// What was taken last cannot stand there.
    pub(super) fn unexpected(&self, wanted: &'static str) -> ExpressionError {
        let (at, found) = match &self.last {
            None => (self.length + 1, "the end".to_owned()),
            Some((at, Token::Sign(sign))) => (*at, format!("{sign:?}")),
            Some((at, Token::Name(name))) => (*at, format!("{name:?}")),
            Some((at, Token::Number(_) | Token::Amount(_))) => (*at, "a number".to_owned()),
        };
        ExpressionError::Unexpected { at, found, wanted }
    }
}

/// How long the number at the start is, with exponent and unit.
fn length_of_number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is = |i: usize, what: fn(&u8) -> bool| bytes.get(i).is_some_and(what);
    let mut end = 0;
    while is(end, |b| b.is_ascii_digit() || *b == b'.') {
        end += 1;
    }
    if is(end, |b| matches!(b, b'e' | b'E')) {
        let sign = usize::from(is(end + 1, |b| matches!(b, b'+' | b'-')));
        if is(end + 1 + sign, u8::is_ascii_digit) {
            end += 1 + sign;
        }
    }
    while is(end, |b| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'.')) {
        end += 1;
    }
    end
}

fn number(text: &str) -> Result<Token, ExpressionError> {
    let bad = || ExpressionError::BadNumber(text.to_owned());
    let mantissa_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (mantissa, mut unit) = text.split_at(mantissa_end);
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{part}");
    if digits.is_empty() || part.contains('.') || digits.len() > MOST_DIGITS {
        return Err(bad());
    }
    let ten = |exponent: usize| 10_i128.pow(u32::try_from(exponent.min(2 * MOST_DIGITS)).unwrap_or_default());
    let over: i128 = digits.parse().map_err(|_| bad())?;
    let mut value = Ratio::new(over, ten(part.len())).ok_or_else(bad)?;
    if let Some(exponent) = unit.strip_prefix(['e', 'E']) {
        let end = exponent.find(|c: char| !c.is_ascii_digit() && c != '+' && c != '-').unwrap_or(exponent.len());
        if let Ok(power) = exponent[..end].parse::<i32>() {
            let zeros = usize::try_from(power.unsigned_abs()).unwrap_or(usize::MAX);
            if zeros > MOST_DIGITS {
                return Err(bad());
            }
            let by = if power < 0 { Ratio::new(1, ten(zeros)) } else { Ratio::new(ten(zeros), 1) };
            value = by.and_then(|by| value.multiplied(by)).ok_or(ExpressionError::TooLarge)?;
            unit = &exponent[end..];
        }
    }
    let too_large = || ExpressionError::TooLarge;
    let (factor, is_binary) = match unit {
        "" => return Ok(Token::Number(value)),
        "%" => {
            let percent = Ratio::new(1, 100).and_then(|by| value.multiplied(by));
            return Ok(Token::Number(percent.ok_or_else(too_large)?));
        }
        "m" => (1, false),
        "k" => (ten(3 + 3), false),
        "M" => (ten(6 + 3), false),
        "G" => (ten(9 + 3), false),
        "T" => (ten(12 + 3), false),
        "P" => (ten(15 + 3), false),
        "Ki" => (1000 << 10, true),
        "Mi" => (1000 << 20, true),
        "Gi" => (1000 << 30, true),
        "Ti" => (1000 << 40, true),
        "Pi" => (1000 << 50, true),
        _ => return Err(ExpressionError::UnknownUnit(text.to_owned())),
    };
    let milli = value.multiplied(Ratio::new(factor, 1).ok_or_else(too_large)?).ok_or_else(too_large)?.ceil();
    Amount::of_milli(milli, is_binary).map(Token::Amount).ok_or_else(too_large)
}
