//! Samples of Prometheus' text format, as far as engines' metrics are read here. Pure.

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// What stands between the braces.
    pub(super) labels: &'a str,
    pub(super) value: f64,
}

/// The samples of a page; lines that are none are left out.
pub(super) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once('}')?,
        None => ("", rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty() && !name.starts_with('#')).then_some(Sample { name, labels, value })
}

/// The value of a label; none of those read here contains a quote.
pub(super) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    while let Some(at) = rest.find(name) {
        let is_whole = rest[..at].chars().next_back().is_none_or(|c| c == ',' || c == '{');
        rest = &rest[at + name.len()..];
        if let Some(value) = rest.strip_prefix("=\"").filter(|_| is_whole) {
            return value.split('"').next();
        }
    }
    None
}

/// Whether labels are those of a data-parallel rank.
pub(super) fn is_of_rank(labels: &str, rank: u32) -> bool {
    let own = ["engine", "dp_rank"].iter().find_map(|name| label(labels, name));
    own.and_then(|own| own.parse().ok()) == Some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_names_labels_and_values() {
        let page = "# HELP a b\n# TYPE a counter\na_total 1.5e+06\n\nb{x=\"1\",engine=\"3\"} 7 1700000000\n\
                    c{x=\"}\"} 2\nbad\n{x} 1\nd{ 1\ne NaNa\n";
        let found: Vec<_> = samples(page).map(|s| (s.name, s.labels, s.value)).collect();
        assert_eq!(found, [("a_total", "", 1.5e6), ("b", "x=\"1\",engine=\"3\"", 7.0), ("c", "x=\"}\"", 2.0)]);
        assert!(is_of_rank(found[1].1, 3) && !is_of_rank(found[1].1, 1) && !is_of_rank("", 0));
        assert_eq!((label("ax=\"1\",x=\"2\"", "x"), label("x=\"1", "y")), (Some("2"), None));
    }
}
