//! Numbers that may be written as a share: `maxUnavailable: 3` or `maxUnavailable: 10%`.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Where a share that is no whole number goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To the smaller number.
    Down,
    /// To the larger number.
    Up,
}

/// The number meant, of `total`. None: it is neither a number nor a share, or it is negative.
pub fn resolve(amount: &IntOrString, total: usize, round: Round) -> Option<usize> {
    match amount {
        IntOrString::Int(number) => usize::try_from(*number).ok(),
        IntOrString::String(text) => {
            let share: usize = text.strip_suffix('%')?.parse().ok()?;
            let hundredths = share.checked_mul(total)?;
            Some(match round {
                Round::Down => hundredths / 100,
                Round::Up => hundredths.div_ceil(100),
            })
        }
    }
}

/// As it was written.
pub fn text(amount: &IntOrString) -> String {
    match amount {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_shares() {
        let share = |text: &str, total, round| resolve(&IntOrString::String(text.into()), total, round);
        assert_eq!(resolve(&IntOrString::Int(3), 10, Round::Down), Some(3));
        assert_eq!(resolve(&IntOrString::Int(-1), 10, Round::Down), None);
        assert_eq!((share("10%", 19, Round::Down), share("10%", 19, Round::Up)), (Some(1), Some(2)));
        assert_eq!((share("0%", 19, Round::Up), share("100%", 7, Round::Down)), (Some(0), Some(7)));
        for bad in ["10", "%", "-1%", "x%", "18446744073709551615%"] {
            assert_eq!(share(bad, 10, Round::Up), None, "{bad}");
        }
    }
}
