//! Numbers of expressions, without rounding: 29 % of 100 are 29.

/// A fraction in lowest terms with a denominator above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    over: i128,
    under: i128,
}

fn common(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i128::try_from(a).unwrap_or(1).max(1)
}

impl Ratio {
    pub(super) const ONE: Self = Self { over: 1, under: 1 };

    /// None: the denominator is 0, or the numbers are too large.
    pub(super) fn new(over: i128, under: i128) -> Option<Self> {
        if under == 0 || over == i128::MIN || under == i128::MIN {
            return None;
        }
        let by = common(over, under) * under.signum();
        Some(Self { over: over / by, under: under / by })
    }

    pub(super) fn negated(self) -> Self {
        Self { over: -self.over, ..self }
    }

    /// None: it is 0.
    pub(super) fn inverted(self) -> Option<Self> {
        Self::new(self.under, self.over)
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        let over = self.over.checked_mul(other.under)?.checked_add(other.over.checked_mul(self.under)?)?;
        Self::new(over, self.under.checked_mul(other.under)?)
    }

    pub(super) fn multiplied(self, other: Self) -> Option<Self> {
        Self::new(self.over.checked_mul(other.over)?, self.under.checked_mul(other.under)?)
    }

    pub(super) fn is_more_than(self, other: Self) -> bool {
        self.plus(other.negated()).is_some_and(|difference| difference.over > 0)
    }

    /// A whole number times this, cut to a whole number.
    pub(super) fn times(self, whole: i128) -> Option<i128> {
        Some(whole.checked_mul(self.over)? / self.under)
    }

    /// The next whole number upwards.
    pub(super) fn ceil(self) -> i128 {
        self.over.div_euclid(self.under) + i128::from(self.over.rem_euclid(self.under) != 0)
    }
}
