//! Texts that many namespaces put into one object of a node: together they are cut to what the object has room for.

use std::collections::BTreeMap;

use crate::k8s::canonical_json;

/// Cuts texts so that together they take at most `most` bytes as the API server stores them: those of the namespaces with the
/// most, and of these the longest. Each comes with its namespace. The same texts are always cut in the same way.
pub(super) fn cut(texts: &mut [(&str, &mut String)], most: usize) {
    let stored = canonical_json::length_of_text;
    let mut lengths: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (namespace, text) in &*texts {
        lengths.entry(*namespace).or_default().push(stored(text));
    }
    let sum = |lengths: &[usize], most: usize| lengths.iter().map(|length| (*length).min(most)).sum::<usize>();
    let sums: Vec<usize> = lengths.values().map(|of| sum(of, usize::MAX)).collect();
    if sum(&sums, usize::MAX) <= most {
        return;
    }
    let each = highest(most, |level| sum(&sums, level) <= most);
    let longest = lengths.values().flatten().copied().max().unwrap_or_default();
    let limits: BTreeMap<&str, usize> =
        lengths.iter().map(|(name, of)| (*name, highest(longest, |level| sum(of, level) <= each))).collect();
    for (namespace, text) in texts {
        let limit = limits.get(*namespace).copied().unwrap_or(longest);
        if stored(text) > limit {
            cut_one(text, limit);
        }
    }
}

/// Cuts a text at a character, so that it takes at most `most` bytes.
fn cut_one(text: &mut String, most: usize) {
    // Without its quotes.
    let (mut length, mut end) = (2, 0);
    for (at, c) in text.char_indices() {
        length += canonical_json::length_of_text(c.encode_utf8(&mut [0; 4])) - 2;
        if length > most {
            break;
        }
        end = at + c.len_utf8();
    }
    text.truncate(end);
}

/// The highest level up to `max` that is good; if one is, all lower ones are. 0 if none is.
pub(super) fn highest(max: usize, is_good: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if is_good(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_cut_where_most_is_said() {
        // Each text takes two bytes more than its letters.
        for (texts, most, left) in [
            (vec![("a", 10), ("b", 10)], 24, vec![10, 10]),
            (vec![("a", 10), ("b", 10)], 23, vec![9, 9]),
            (vec![("a", 100), ("a", 100), ("b", 5)], 60, vec![24, 24, 5]),
            (vec![("a", 100), ("a", 10), ("b", 5)], 60, vec![39, 10, 5]),
            (vec![], 0, vec![]),
        ] {
            let mut all: Vec<(&str, String)> =
                texts.iter().map(|(name, length)| (*name, "x".repeat(*length))).collect();
            let mut given: Vec<(&str, &mut String)> = all.iter_mut().map(|(name, text)| (*name, text)).collect();
            cut(&mut given, most);
            assert_eq!(all.iter().map(|(_, text)| text.len()).collect::<Vec<_>>(), left, "{texts:?} {most}");
        }
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        for (text, most, left) in [("äöü", 8, "äöü"), ("äöü", 7, "äö"), ("<<", 13, "<"), ("x", 0, "")] {
            let mut cut = text.to_owned();
            cut_one(&mut cut, most);
            assert_eq!(cut, left, "{text} {most}");
        }
    }
}
