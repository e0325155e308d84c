//! `POST /api/replicas/NAME/drain` and `/undrain`: an operator keeps new requests away from a replica, and lets them in
//! again. Running ones finish. Its sessions move at their next turns; with `drain?within=10m` over that time, the dearest
//! to move last. `/release` ends the quarantine of a replica whose speculative decoding did not work.

use crate::engine::speculation::SpeculationGuard;
use crate::fleet::Fleet;
use crate::fleet::replica::Replica;
use std::sync::Arc;
use std::time::Duration;

/// The longest time that a drain may take: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    name: String,
    verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Drain,
    Undrain,
    Release,
}

impl Order {
    /// The order in a path, if it is the path of one.
    pub(super) fn of(path: &str) -> Option<Order> {
        let (name, verb) = path.strip_prefix("/api/replicas/")?.rsplit_once('/')?;
        let verb = match verb {
            "drain" => Verb::Drain,
            "undrain" => Verb::Undrain,
            "release" => Verb::Release,
            _ => return None,
        };
        Some(Order { name: decoded(name)?, verb })
    }

    /// The time that `query` gives it.
    ///
    /// # Errors
    /// What may stand there. A name that nobody knows is no order: with `witin=10m` everybody would have to leave at once.
    pub(super) fn within(&self, query: Option<&str>) -> Result<Option<Duration>, &'static str> {
        match query.filter(|query| !query.is_empty()).map(|query| (query.strip_prefix("within="), self.verb)) {
            None => Ok(None),
            Some((Some(value), Verb::Drain)) => within(value).map(Some),
            Some((None, Verb::Drain)) => Err("a drain knows one parameter: within, such as ?within=10m"),
            Some((_, Verb::Undrain | Verb::Release)) => Err("this order knows no parameters"),
        }
    }

    /// Does it, a drain `within` some time; `None` if there is no such replica.
    ///
    /// # Errors
    /// It could not be written down, and was not done.
    pub(super) fn apply(
        &self,
        fleet: &Fleet,
        guard: Option<&SpeculationGuard>,
        within: Option<Duration>,
    ) -> std::io::Result<Option<Arc<Replica>>> {
        let Some(replica) = fleet.replicas().iter().find(|r| r.name() == self.name).cloned() else { return Ok(None) };
        match self.verb {
            Verb::Drain => fleet.drain(&replica, within),
            Verb::Undrain => replica.drain(false, fleet.clock().now()),
            Verb::Release => {
                guard.map(|guard| guard.release(&replica)).transpose()?;
            }
        }
        Ok(Some(replica))
    }
}

/// The time in a query, such as `within=10m`.
///
/// # Errors
/// What it should be.
fn within(value: &str) -> Result<Duration, &'static str> {
    let span = || {
        let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit())?);
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
    };
    span().filter(|span| *span <= LONGEST).ok_or("within is a duration (30s, 10m, 1h) of a day at most")
}

/// A name without percent signs: those of data-parallel ranks hold a `#`.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_names_its_replica() {
        let order = |name: &str, verb| Some(Order { name: name.to_owned(), verb });
        assert_eq!(Order::of("/api/replicas/gpu-a/drain"), order("gpu-a", Verb::Drain));
        assert_eq!(Order::of("/api/replicas/gpu-a%23dp3/undrain"), order("gpu-a#dp3", Verb::Undrain));
        assert_eq!(Order::of("/api/replicas/10.0.0.1:8000/drain"), order("10.0.0.1:8000", Verb::Drain));
        assert_eq!(Order::of("/api/replicas/a/release"), order("a", Verb::Release));
        for path in
            ["/api/replicas/drain", "/api/replicas/a/stop", "/api/replicas/a%2/drain", "/api/replicas/a%zz/drain"]
        {
            assert_eq!(Order::of(path), None, "{path}");
        }
    }

    #[test]
    fn a_drain_may_take_its_time() {
        let drain = Order { name: "a".to_owned(), verb: Verb::Drain };
        let seconds = |n| Ok(Some(Duration::from_secs(n)));
        for (query, wanted) in [
            (None, Ok(None)),
            (Some(""), Ok(None)),
            (Some("within=30s"), seconds(30)),
            (Some("within=10m"), seconds(600)),
            (Some("within=24h"), seconds(86_400)),
        ] {
            assert_eq!(drain.within(query), wanted, "{query:?}");
        }
        for wrong in ["", "10", "m", "-1s", "1.5m", "25h", "99999999999999999999h", "10 m"] {
            assert!(drain.within(Some(&format!("within={wrong}"))).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_parameter_drains_nobody() {
        for verb in [Verb::Drain, Verb::Undrain, Verb::Release] {
            let order = Order { name: "a".to_owned(), verb };
            for query in ["witin=10m", "within", "x=1", "within=10m&x=1", "WITHIN=10m"] {
                assert!(order.within(Some(query)).is_err(), "{verb:?} {query}");
            }
            assert_eq!(order.within(Some("within=10m")).is_ok(), verb == Verb::Drain, "{verb:?}");
        }
    }
}
