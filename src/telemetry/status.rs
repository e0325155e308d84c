//! HTTP status codes as metric labels.

/// Those that are known by number, in rising order.
const KNOWN: [(u16, &str); 23] = [
    (200, "200"),
    (201, "201"),
    (202, "202"),
    (204, "204"),
    (301, "301"),
    (302, "302"),
    (304, "304"),
    (307, "307"),
    (308, "308"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (413, "413"),
    (422, "422"),
    (429, "429"),
    (499, "499"),
    (500, "500"),
    (502, "502"),
    (503, "503"),
    (504, "504"),
];
/// Those that stand for the rest.
const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "none"];

/// Every label.
pub(super) fn codes() -> impl ExactSizeIterator<Item = &'static str> {
    (0..KNOWN.len() + CLASSES.len()).map(label)
}

/// The label in this place among all of them.
fn label(place: usize) -> &'static str {
    match KNOWN.get(place) {
        Some((_, label)) => label,
        None => CLASSES[place - KNOWN.len()],
    }
}

/// The place of a status's label: the usual ones by number, the rest by class, so that no engine can grow the set.
pub(super) fn place(status: u16) -> usize {
    KNOWN.binary_search_by_key(&status, |(n, _)| *n).unwrap_or_else(|_| {
        let class = match status {
            200..=599 => usize::from(status / 100 - 2),
            _ => CLASSES.len() - 1,
        };
        KNOWN.len() + class
    })
}

/// The status as a label.
pub(super) fn code(status: u16) -> &'static str {
    label(place(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_labels_are_a_closed_set() {
        let labels: std::collections::BTreeSet<_> = (0..=u16::MAX).map(code).collect();
        assert_eq!((labels.len(), codes().collect()), (28, labels));
        assert_eq!((code(200), code(418), code(503), code(0)), ("200", "4xx", "503", "none"));
    }
}
