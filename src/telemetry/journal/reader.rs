//! Lines as steps.

use crate::api::json::{Cursor, Kind, Malformed};
use crate::fleet::setbacks::Spared;
use crate::fleet::steps::{Change, Choice, Ending, Hold, Ruled, Seat, Seen, Share, Stage, Told};
use crate::policy::flight::FlightParams;
use crate::policy::hint::{Hint, Source};
use crate::policy::lane::Lane;
use crate::policy::score::{AffinityParams, LoadParams};
use crate::policy::select::{Params, Reason};
use crate::prefix::fingerprint::{Ends, Place};
use crate::prefix::residency::Served;
use crate::prefix::stored::Held;
use crate::types::{Basis, FlightMode, PolicyKind, ReplicaId, ShortPrompts};
use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A file begins.
    Head(Part),
    /// Something happened.
    Step(Stage),
    /// So many steps are missing here.
    Lost(u64),
    /// The process was followed by another one.
    Over,
}

/// Which file of which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// So many after the first one.
    pub number: u64,
    /// What tells the process from others.
    pub run: Option<u64>,
}

impl Part {
    /// Whether it goes on where `last` has ended.
    pub fn follows(self, last: Part) -> bool {
        self.run == last.run && last.number.checked_add(1) == Some(self.number)
    }
}

/// A line that is none of a journal.
#[derive(Debug, Error, PartialEq)]
#[error("it {0}")]
pub struct Broken(pub String);

type Result<T> = std::result::Result<T, Broken>;

/// There are no more slots.
const MOST_MEMBERS: usize = 1 << 16;

/// Reads lines in the order in which they were written.
#[derive(Debug, Default)]
pub struct Reader {
    /// For each block, by its hash, the one before it.
    before: HashMap<u64, Option<u64>>,
}

/// The members of a line.
struct Fields<'a>(Vec<(&'a [u8], &'a [u8])>);

impl Reader {
    /// One line.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn line(&mut self, text: &str) -> Result<Line> {
        let fields = Fields::read(text.as_bytes())?;
        if let Some(version) = fields.find("journal") {
            return match version {
                b"1" => Ok(Line::Head(Part { number: fields.number("part")?, run: fields.hex("run")? })),
                _ => Err(Broken("is of a journal of another version".to_owned())),
            };
        }
        match fields.text("do")? {
            "lost" => Ok(Line::Lost(fields.number("steps")?)),
            "over" => Ok(Line::Over),
            what => {
                let change = self.change(what, &fields)?;
                Ok(Line::Step(Stage { at: fields.number("t")?, changes: vec![change] }))
            }
        }
    }

    fn change(&mut self, what: &str, f: &Fields<'_>) -> Result<Change> {
        let id = || f.number("id").map(ReplicaId);
        let request = || f.hex("r").and_then(|r| r.ok_or_else(|| missing("r")));
        let seat = || Ok::<_, Broken>(Seat { in_lane: f.number("lane")? });
        let reserved = |what| Ok(Change::Reserved(request()?, what));
        let claim = |what| Ok(Change::Claim(request()?, what));
        match what {
            "rules" => Ok(Change::Ruled(Box::new(rules(f)?))),
            "index" => Ok(Change::Allowed(f.number("bytes")?)),
            "seat" => Ok(Change::Seated(id()?, seat()?)),
            "reseat" => Ok(Change::Reseated(id()?, seat()?)),
            "vacate" => Ok(Change::Vacated(id()?)),
            "capacity" => Ok(Change::Capacity(id()?, f.number("tokens")?)),
            "forget" => Ok(Change::Forgot(id()?)),
            "restart" => Ok(Change::Restarted(id()?)),
            "inherited" => Ok(Change::Inherited),
            "heard" => Ok(Change::Heard),
            "model" => Ok(Change::Model(f.model()?, f.number("bytes")?, f.number("prompt")?, f.maybe("output")?)),
            "place" => Ok(Change::Placed(Box::new(self.choice(request()?, f)?))),
            "take" => Ok(Change::Taken(request()?, id()?)),
            "claim" => Ok(Change::Claimed(request()?, id()?)),
            "read" => reserved(Share::Read),
            "done" => reserved(Share::Done),
            "silent" => reserved(Share::Silent),
            "shrunk" => reserved(Share::Shrunk),
            "freed" => reserved(Share::Freed),
            "held" => claim(Hold::Held),
            "left" => claim(Hold::Left),
            "answered" => claim(Hold::Answered(f.number("prompt")?, f.number("output")?)),
            "served" => claim(Hold::Served(Served {
                prompt: f.number("prompt")?,
                cached: f.number("cached")?,
                output: f.number("output")?,
            })),
            "rates" => Ok(Change::Rates(id()?, seen(f)?)),
            "end" => Ok(Change::Ended(request()?, ending(f)?)),
            _ => Err(Broken(format!("does {what:?}, which is not known"))),
        }
    }

    fn choice(&mut self, request: u64, f: &Fields<'_>) -> Result<Choice> {
        let chain = self.chain(f)?;
        let source = if f.number("named")? { Source::Named } else { Source::Derived };
        let first = ReplicaId(f.number("to")?);
        let reason = f.text("reason")?;
        Ok(Choice {
            request,
            chain,
            ends: Ends { previous: f.place("before")?, own: f.place("end")? },
            body_bytes: f.number("body")?,
            prompt_bytes: f.number("prompt")?,
            model: f.model()?,
            streams: f.number("streams")?,
            session: f.hex("session")?.map(|key| Hint { key, source }),
            pinned: f.maybe("pinned")?.map(ReplicaId),
            salt: f.number("turn")?,
            pool: pool(f)?,
            spared: Spared {
                picked: f.maybe("picked")?.map(ReplicaId),
                failed: f.maybe("failed")?.map(ReplicaId),
                refusing: f.replicas("refusing")?.into(),
            },
            full: f.replicas("full")?,
            is_new_session: f.number("is_new")?,
            waits: f.number("waits")?,
            first,
            reason: Reason::ALL.into_iter().find(|r| r.label() == reason).ok_or_else(|| missing("reason"))?,
            seen: f
                .rows("seen")?
                .into_iter()
                .map(|[id, overlap, load]| Ok((ReplicaId(number(id)?), number(overlap)?, number(load)?)))
                .collect::<Result<_>>()?,
            held: (f.number("held")?, f.number("tokens")?),
            ttft_ms: f.number("ttft")?,
        })
    }

    /// The hashes of a prompt: those that are known by the last of them, then those that are new.
    fn chain(&mut self, f: &Fields<'_>) -> Result<Arc<[u64]>> {
        let (blocks, known): (usize, usize) = (f.number("blocks")?, f.number("known")?);
        let mut last = f.hex("after")?;
        let new = f.text("new")?.as_bytes().as_chunks::<16>().0;
        // what is known stands in lines before this one: no number makes the chain longer than those
        if known.checked_add(new.len()) != Some(blocks) || (known > 0) != last.is_some() || known > self.before.len() {
            return Err(missing("new"));
        }
        let mut chain = vec![0; blocks];
        let mut at = last;
        for place in chain[..known].iter_mut().rev() {
            *place = at.ok_or_else(|| missing("after"))?;
            at = *self.before.get(place).ok_or_else(|| Broken("goes on from what no line before it has".to_owned()))?;
        }
        for (place, digits) in chain[known..].iter_mut().zip(new) {
            let hash = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
            *place = hash.ok_or_else(|| missing("new"))?;
            self.before.insert(*place, last.replace(*place));
        }
        Ok(chain.into())
    }
}

fn rules(f: &Fields<'_>) -> Result<Ruled> {
    let [policy, basis, flight] = ["policy", "basis", "flight"].map(|name| f.text(name));
    let (policy, basis, flight) = (policy?, basis?, flight?);
    let lane = f.maybe("long")?.map(|over| {
        let short = f.text("short")?;
        let short = ShortPrompts::ALL.into_iter().find(|s| s.name() == short).ok_or_else(|| missing("short"))?;
        Ok::<_, Broken>(Lane { over, short })
    });
    Ok(Ruled {
        params: Params {
            policy: PolicyKind::ALL.into_iter().find(|p| p.name() == policy).ok_or_else(|| missing("policy"))?,
            affinity: AffinityParams {
                basis: Basis::ALL.into_iter().find(|b| b.name() == basis).ok_or_else(|| missing("basis"))?,
                cap_blocks: f.number("cap")?,
                alpha: f.number("alpha")?,
            },
            load: LoadParams {
                unit_bytes: f.number("unit")?,
                max_units: f.number("most")?,
                block_bytes: f.number("block")?,
            },
            flight: FlightParams {
                mode: FlightMode::ALL.into_iter().find(|m| m.name() == flight).ok_or_else(|| missing("flight"))?,
                min_blocks: f.number("least")?,
                max_hold_ms: f.number("hold")?,
            },
        },
        lane: lane.transpose()?,
    })
}

fn pool(f: &Fields<'_>) -> Result<Vec<Told>> {
    let mut pool = Vec::new();
    for part in f.text("pool")?.split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let ids = number::<u16>(from.as_bytes())?..=number(to.as_bytes())?;
        pool.extend(ids.map(|id| Told { id: ReplicaId(id), healthy: true, share: 1.0, stores: None, presumed: false }));
        if pool.len() > MOST_MEMBERS {
            return Err(missing("pool"));
        }
    }
    for [id] in f.rows("down")? {
        let id = ReplicaId(number(id)?);
        pool.iter_mut().filter(|told| told.id == id).for_each(|told| told.healthy = false);
    }
    for [id, share] in f.rows("back")? {
        let (id, share) = (ReplicaId(number(id)?), number(share)?);
        pool.iter_mut().filter(|told| told.id == id).for_each(|told| told.share = share);
    }
    for [id, tokens] in f.rows("stores")? {
        let (id, tokens) = (ReplicaId(number(id)?), number(tokens)?);
        pool.iter_mut()
            .filter(|told| told.id == id)
            .for_each(|told| told.stores = Some(Held { tokens, is_whole: false }));
    }
    let whole = f.replicas("whole")?;
    let held = pool.iter_mut().filter(|told| whole.contains(&told.id)).filter_map(|told| told.stores.as_mut());
    held.for_each(|held| held.is_whole = true);
    let presumed = f.maybe("presumed")?.map(ReplicaId);
    pool.iter_mut().for_each(|told| told.presumed = Some(told.id) == presumed);
    Ok(pool)
}

fn seen(f: &Fields<'_>) -> Result<Seen> {
    let prefill =
        f.row::<3>("prefill")?.map(|[new, cached, ms]| Ok::<_, Broken>((number(new)?, number(cached)?, number(ms)?)));
    let step = f.row::<2>("step")?.map(|[running, ms]| Ok::<_, Broken>((number(running)?, number(ms)?)));
    Ok(Seen { prefill: prefill.transpose()?, step: step.transpose()? })
}

fn ending(f: &Fields<'_>) -> Result<Ending> {
    Ok(Ending {
        word: Cow::Owned(f.text("word")?.to_owned()),
        status: f.number("status")?,
        attempts: f.number("attempts")?,
        usage: [f.maybe("prompt")?, f.maybe("cached")?, f.maybe("output")?],
        ttft_ms: f.maybe("ttft")?,
        ms: f.number("ms")?,
    })
}

fn missing(name: &str) -> Broken {
    Broken(format!("has no {name:?} that can be read"))
}

fn number<T: FromStr>(text: &[u8]) -> Result<T> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Broken("has something else than a number".to_owned()))
}

/// The items of a list.
fn items(text: &[u8]) -> Result<Vec<&[u8]>> {
    let mut items = Vec::new();
    Cursor::new(text).array(|item| {
        items.push(item.skip()?);
        Ok(())
    })?;
    Ok(items)
}

impl From<Malformed> for Broken {
    fn from(at: Malformed) -> Self {
        Broken(format!("cannot be read at byte {}", at.at))
    }
}

impl<'a> Fields<'a> {
    fn read(text: &'a [u8]) -> Result<Self> {
        let (mut cursor, mut fields) = (Cursor::new(text), Vec::new());
        cursor.object(|key, value| {
            fields.push((key.raw, value.skip()?));
            Ok(())
        })?;
        if cursor.at_end() { Ok(Fields(fields)) } else { Err(Broken("does not end where it should".to_owned())) }
    }

    fn find(&self, name: &str) -> Option<&'a [u8]> {
        let found = self.0.iter().find(|(key, _)| *key == name.as_bytes());
        found.map(|(_, value)| *value).filter(|value| *value != b"null")
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        self.maybe(name)?.ok_or_else(|| missing(name))
    }

    fn maybe<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        self.find(name).map(|value| number(value).map_err(|_| missing(name))).transpose()
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        let value = self.find(name).ok_or_else(|| missing(name))?;
        let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        inner.and_then(|inner| std::str::from_utf8(inner).ok()).ok_or_else(|| missing(name))
    }

    fn hex(&self, name: &str) -> Result<Option<u64>> {
        let Some(_) = self.find(name) else { return Ok(None) };
        u64::from_str_radix(self.text(name)?, 16).map(Some).map_err(|_| missing(name))
    }

    fn model(&self) -> Result<Option<String>> {
        Ok(self.maybe::<u32>("model")?.map(|number| format!("m{number}")))
    }

    fn place(&self, name: &str) -> Result<Option<Place>> {
        let Some([print, blocks]) = self.row(name)? else { return Ok(None) };
        let digits = print.get(1..17).and_then(|digits| std::str::from_utf8(digits).ok());
        let print = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(|| missing(name))?;
        Ok(Some(Place { print, blocks: number(blocks)? }))
    }

    /// A list of so many items, if it is there.
    fn row<const N: usize>(&self, name: &str) -> Result<Option<[&'a [u8]; N]>> {
        let Some(value) = self.find(name) else { return Ok(None) };
        items(value)?.try_into().map(Some).map_err(|_| missing(name))
    }

    /// A list of such lists, or of bare items; none, if it is not there.
    fn replicas(&self, name: &str) -> Result<Vec<ReplicaId>> {
        self.rows::<1>(name)?.into_iter().map(|[id]| Ok(ReplicaId(number(id)?))).collect()
    }

    fn rows<const N: usize>(&self, name: &str) -> Result<Vec<[&'a [u8]; N]>> {
        let Some(value) = self.find(name) else { return Ok(Vec::new()) };
        let row = |item: &'a [u8]| {
            let parts = match Cursor::new(item).kind()? {
                Kind::Array => items(item)?,
                _ => vec![item],
            };
            parts.try_into().map_err(|_| missing(name))
        };
        items(value)?.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests;
