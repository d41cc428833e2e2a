//! Amounts of a resource as `resourcesPolicy` computes with them.

use std::fmt;

use crate::k8s::quantity;

/// An amount in thousandths, and how it is written: with powers of 1024 (`Mi`) or of 1000 (`m`, `k`, `M`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    milli: i128,
    binary: bool,
}

/// The most thousandths: what Kubernetes stores is a 64-bit number.
const MOST: i128 = i64::MAX as i128 * 1000;

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self { milli: 0, binary: false };

    /// From thousandths. None: it is more than Kubernetes can store.
    pub fn of_milli(milli: i128, binary: bool) -> Option<Self> {
        (milli.unsigned_abs() <= MOST.unsigned_abs()).then_some(Self { milli, binary })
    }

    /// As objects have it; parts of a thousandth are rounded up. None: it is no amount.
    pub fn parse(text: &str) -> Option<Self> {
        const NANO_IN_MILLI: i128 = 1_000_000;
        let nano = quantity::parse(text)?;
        let milli = nano / NANO_IN_MILLI + i128::from(nano % NANO_IN_MILLI > 0);
        Self::of_milli(milli, text.ends_with('i'))
    }

    /// Thousandths.
    pub fn milli(self) -> i128 {
        self.milli
    }

    /// The same amount, otherwise written.
    pub fn with_milli(self, milli: i128) -> Option<Self> {
        Self::of_milli(milli, self.binary)
    }

    /// The sum, written as the first one unless that is nothing.
    pub fn plus(self, other: Self) -> Option<Self> {
        let binary = if self.milli == 0 { other.binary } else { self.binary };
        Self::of_milli(self.milli.checked_add(other.milli)?, binary)
    }

    /// The difference, written as the first one unless that is nothing.
    pub fn minus(self, other: Self) -> Option<Self> {
        self.plus(other.with_milli(-other.milli)?)
    }

    /// The larger one; of equals the first.
    pub fn max(self, other: Self) -> Self {
        if other.milli > self.milli { other } else { self }
    }

    /// The smaller one; of equals the first.
    pub fn min(self, other: Self) -> Self {
        if other.milli < self.milli { other } else { self }
    }

    /// Rounded up to a whole number.
    pub fn whole(self) -> Self {
        let part = self.milli.rem_euclid(1000);
        let milli = if part == 0 { self.milli } else { self.milli - part + 1000 };
        Self { milli: milli.min(MOST), ..self }
    }
}

/// As the API server writes it: with the largest suffix that leaves a whole number.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
        let is_binary = self.binary && self.milli.abs() >= 1024 * 1000;
        if !is_binary && self.milli % 1000 != 0 {
            return write!(f, "{}m", self.milli);
        }
        let (mut value, by, suffixes) = match is_binary {
            true => (self.whole().milli / 1000, 1024, BINARY),
            false => (self.milli / 1000, 1000, DECIMAL),
        };
        let mut suffix = 0;
        while value != 0 && value % by == 0 && suffix + 1 < suffixes.len() {
            value /= by;
            suffix += 1;
        }
        write!(f, "{value}{}", suffixes[suffix])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_the_api_server_writes_them() {
        for (text, wanted) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1000", "1k"),
            ("1000000", "1M"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("0", "0"),
            ("0Mi", "0"),
            ("100u", "1m"),
            ("0.5Ki", "512"),
            ("1.5Ki", "1536"),
            ("2e3", "2k"),
            ("-1500m", "-1500m"),
        ] {
            assert_eq!(Amount::parse(text).unwrap().to_string(), wanted, "{text}");
        }
        assert_eq!(Amount::parse("x"), None);
        assert_eq!(Amount::parse("1000000000000E"), None);
    }

    #[test]
    fn a_sum_is_written_as_its_first_part_unless_that_is_nothing() {
        let of = |text| Amount::parse(text).unwrap();
        assert_eq!(of("1Gi").plus(of("1024")).unwrap().to_string(), "1048577Ki");
        assert_eq!(of("0").plus(of("64Mi")).unwrap().to_string(), "64Mi");
        assert_eq!(of("1").minus(of("250m")).unwrap().to_string(), "750m");
        assert_eq!(of("1").max(of("1000m")), of("1"));
        assert_eq!((of("1500m").whole(), of("-500m").whole().milli()), (of("2"), 0));
    }
}
