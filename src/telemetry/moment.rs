//! A moment as log lines show it: in UTC, to the millisecond, in the form of RFC 3339.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A moment, as the time since 1970 began.
#[derive(Clone, Copy, Debug)]
pub struct Moment(pub Duration);

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Moment(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let millis = self.0.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

/// The date, so many days after the first of January 1970 (Gregorian; the year is taken to begin in March, so that the day
/// that some have more is the last one: <https://howardhinnant.github.io/date_algorithms.html>, `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (millis, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_000_000_000_007, "2001-09-09T01:46:40.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Moment(Duration::from_millis(millis)).to_string(), shown);
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut before = date(0);
        for days in 1..200_000 {
            let now = date(days);
            let (year, month, day) = before;
            let follows = [(year, month, day + 1), (year, month + 1, 1), (year + 1, 1, 1)];
            assert!(follows.contains(&now) && now.2 <= 31 && now.1 <= 12, "{before:?} {now:?}");
            before = now;
        }
    }
}
