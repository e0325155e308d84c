//! "Did you mean": the known name nearest to one that is not known.

/// The end of an allowed-text: the nearest known name, if one is near enough to be a slip of the hand.
pub(super) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let limit = (name.chars().count() / 3).min(2);
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map_or_else(String::new, |(_, candidate)| format!("; did you mean {candidate}?"))
}

/// Edits between two names (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_gets_a_hint_and_a_stranger_does_not() {
        let known = || ["policy", "block_bytes"].into_iter();
        assert_eq!(hint("polcy", known()), "; did you mean policy?");
        assert_eq!(hint("blockbytes", known()), "; did you mean block_bytes?");
        assert_eq!(hint("colour", known()), "");
        assert_eq!(hint("", known()), "");
    }
}
