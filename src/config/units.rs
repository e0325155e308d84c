//! Quantities as operators write them: `250ms`, `64KiB`, `4`.
//!
//! A unit is part of the value, never of the key: a bare number for a duration is refused rather than guessed.
//! `write` gives the shortest exact form, and `parse` reads every form that `write` gives.

use std::time::Duration;

/// A number with a written form.
pub(super) trait Quantity: Copy + PartialOrd {
    /// What to write, for people.
    const FORM: &'static str;

    /// The quantity in `text`, if it is one.
    fn parse(text: &str) -> Option<Self>;

    /// The written form.
    fn write(self) -> String;
}

/// Milliseconds in each unit, smallest first.
const DURATIONS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl Quantity for Duration {
    const FORM: &'static str = "a duration (250ms, 10s, 15m, 1h)";

    fn parse(text: &str) -> Option<Duration> {
        let (number, unit) = split(text)?;
        let (_, scale) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(*scale).map(Duration::from_millis)
    }

    fn write(self) -> String {
        let millis = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
        let exact = |(_, scale): &&(&str, u64)| millis > 0 && millis.is_multiple_of(*scale);
        let (unit, scale) = DURATIONS.iter().rev().find(exact).unwrap_or(&DURATIONS[0]);
        format!("{}{unit}", millis / scale)
    }
}

/// Binary units, smallest first; `write` uses these.
const SIZES: [(&str, u64); 4] = [("", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
/// Decimal units, for reading.
const DECIMAL_SIZES: [(&str, u64); 3] = [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];

impl Quantity for usize {
    const FORM: &'static str = "a size (64KiB, 2MiB, 1GiB, 1MB, or plain bytes)";

    fn parse(text: &str) -> Option<usize> {
        let (number, unit) = split(text)?;
        let (_, scale) = SIZES.iter().chain(&DECIMAL_SIZES).find(|(name, _)| *name == unit)?;
        number.checked_mul(*scale)?.try_into().ok()
    }

    fn write(self) -> String {
        let bytes = u64::try_from(self).unwrap_or(u64::MAX);
        let exact = |(_, scale): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*scale);
        let (unit, scale) = SIZES.iter().rev().find(exact).unwrap_or(&SIZES[0]);
        format!("{}{unit}", bytes / scale)
    }
}

impl Quantity for u32 {
    const FORM: &'static str = "a whole number";

    fn parse(text: &str) -> Option<u32> {
        text.parse().ok()
    }

    fn write(self) -> String {
        self.to_string()
    }
}

impl Quantity for f64 {
    const FORM: &'static str = "a number";

    fn parse(text: &str) -> Option<f64> {
        text.parse().ok().filter(|number: &f64| number.is_finite())
    }

    fn write(self) -> String {
        self.to_string()
    }
}

/// `64KiB` → 64, `KiB`.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_that_operators_write() {
        let durations = [("250ms", 250), ("10s", 10_000), ("15m", 900_000), ("1h", 3_600_000), ("0ms", 0)];
        for (text, millis) in durations {
            assert_eq!(Duration::parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        let sizes = [("64KiB", 65_536), ("2MiB", 2 << 20), ("1GiB", 1 << 30), ("1MB", 1_000_000), ("1KB", 1_000)];
        for (text, bytes) in sizes.into_iter().chain([("4096", 4096), ("0", 0)]) {
            assert_eq!(usize::parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn forms_that_are_refused() {
        for text in ["", "10", "s", "1.5s", "-1s", "1 s", "1S", "1d", "1us", "99999999999999999h"] {
            assert_eq!(Duration::parse(text), None, "{text}");
        }
        for text in ["", "KiB", "1.5MiB", "-1", "1 KiB", "1kb", "1TB", "99999999999999999GiB"] {
            assert_eq!(usize::parse(text), None, "{text}");
        }
        for text in ["inf", "NaN", "-inf", "1e999", "four"] {
            assert_eq!(f64::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn durations_round_trip(number in 0..1_000_000_u64, scale in 0..DURATIONS.len()) {
            let duration = Duration::from_millis(number * DURATIONS[scale].1);
            prop_assert_eq!(Duration::parse(&duration.write()), Some(duration));
        }

        #[test]
        fn sizes_round_trip(number in 0..1_000_000_usize, shift in 0..31_u32) {
            let size = number << shift;
            prop_assert_eq!(usize::parse(&size.write()), Some(size));
        }

        #[test]
        fn numbers_round_trip(number in 0.0..1000.0_f64) {
            prop_assert_eq!(f64::parse(&number.write()), Some(number));
        }
    }
}
