//! DNS messages (RFC 1035, RFC 2782, RFC 3596), as far as discovery needs them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
    Srv,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Kind::A => 1,
            Kind::Aaaa => 28,
            Kind::Srv => 33,
        }
    }
}

/// What a record of the kinds above says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Address(IpAddr),
    /// A port of a host.
    Srv(u16, String),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// 0: no error; 3: there is no such name.
    pub(super) code: u8,
    /// Whether it did not fit into the message.
    pub(super) is_cut: bool,
    /// The records of the kind that was asked for.
    pub(super) records: Vec<Data>,
    /// The least time to live of the records, in seconds.
    pub(super) ttl: Option<u32>,
}

const HEADER: usize = 12;
/// A name has no more labels than this; one that has is a loop.
const MOST_LABELS: usize = 128;
const INTERNET: u16 = 1;

/// A question for one name; `None` if it is no name.
pub(super) fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(HEADER + name.len() + 6);
    out.extend(id.to_be_bytes());
    // recursion desired; one question
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|n| (1..64).contains(n) && label.is_ascii())?;
        out.push(length);
        out.extend(label.as_bytes());
    }
    out.push(0);
    out.extend(kind.number().to_be_bytes());
    out.extend(INTERNET.to_be_bytes());
    (out.len() <= HEADER + 255 + 4).then_some(out)
}

/// Reads the reply to `question`; `None` if it is not one.
pub(super) fn reply(question: &[u8], message: &[u8]) -> Option<Reply> {
    let flags = pair(message, 2)?;
    let asked = &question[HEADER..];
    let is_ours = message.get(..2) == question.get(..2) && flags & 0x8000 != 0 && pair(message, 4)? == 1;
    // a server may change the case of a name
    if !is_ours || !message.get(HEADER..HEADER + asked.len())?.eq_ignore_ascii_case(asked) {
        return None;
    }
    let (code, is_cut) = (u8::try_from(flags & 0xf).unwrap_or(0), flags & 0x200 != 0);
    if is_cut {
        // wherever that was, in a record perhaps: it is asked for as a whole
        return Some(Reply { code, is_cut, records: Vec::new(), ttl: None });
    }
    let kind = pair(question, question.len() - 4)?;
    let mut at = HEADER + asked.len();
    let (mut records, mut ttl) = (Vec::new(), None);
    for _ in 0..pair(message, 6)? {
        let (_, after) = name(message, at)?;
        let (found, class) = (pair(message, after)?, pair(message, after + 2)?);
        let lives = u32::from(pair(message, after + 4)?) << 16 | u32::from(pair(message, after + 6)?);
        let length = usize::from(pair(message, after + 8)?);
        let from = after + 10;
        let data = message.get(from..from + length)?;
        at = from + length;
        if (found, class) == (kind, INTERNET) {
            records.push(read(message, kind, from, data)?);
        }
        // an alias on the way is no more lasting than what it leads to
        ttl = Some(ttl.map_or(lives, |known: u32| known.min(lives)));
    }
    Some(Reply { code, is_cut, records, ttl })
}

fn read(message: &[u8], kind: u16, from: usize, data: &[u8]) -> Option<Data> {
    Some(match kind {
        1 => Data::Address(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
        28 => Data::Address(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
        _ => Data::Srv(pair(data, 4)?, name(message, from + 6)?.0),
    })
}

fn pair(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The name at a place, and where it ends.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut out, mut end) = (String::new(), None);
    for _ in 0..MOST_LABELS {
        let length = *message.get(at)?;
        match length >> 6 {
            0 if length == 0 => return Some((out, end.unwrap_or(at + 1))),
            0 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(std::str::from_utf8(label).ok().filter(|l| l.bytes().all(|b| b.is_ascii_graphic()))?);
                at += 1 + usize::from(length);
            }
            // the rest stands elsewhere
            3 => {
                end = end.or(Some(at + 2));
                at = usize::from(pair(message, at)? & 0x3fff);
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reply with records as given: kind, time to live, data.
    fn message(question: &[u8], records: &[(u16, u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = question.to_vec();
        out[2] |= 0x80;
        out[7] = u8::try_from(records.len()).unwrap();
        for (kind, ttl, data) in records {
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend([0, 1]);
            out.extend(ttl.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend(data);
        }
        out
    }

    #[test]
    fn addresses_and_services_are_read_and_others_passed_over() {
        let asked = question(7, "engines.internal.", Kind::A).unwrap();
        // the alias has the least time to live
        let got = message(&asked, &[(5, 3, vec![0xc0, 12]), (1, 60, vec![10, 0, 0, 1]), (1, 30, vec![10, 0, 0, 2])]);
        let address = |n| Data::Address(Ipv4Addr::new(10, 0, 0, n).into());
        let wanted = Reply { code: 0, is_cut: false, records: vec![address(1), address(2)], ttl: Some(3) };
        assert_eq!(reply(&asked, &got), Some(wanted));
        let asked = question(8, "_http._tcp.engines", Kind::Srv).unwrap();
        let target = [&[0, 1, 0, 2, 0x1f, 0x90][..], b"\x01a", &[0xc0, 12 + 11]].concat();
        let got = message(&asked, &[(33, 5, target)]);
        assert_eq!(reply(&asked, &got).unwrap().records, [Data::Srv(8080, "a.engines".into())]);
        let asked = question(9, "x", Kind::Aaaa).unwrap();
        let six = message(&asked, &[(28, 5, Ipv6Addr::LOCALHOST.octets().to_vec())]);
        assert_eq!(reply(&asked, &six).unwrap().records, [Data::Address(Ipv6Addr::LOCALHOST.into())]);
        let mut none = message(&asked, &[]);
        (none[2], none[3]) = (none[2] | 2, 3);
        assert_eq!(reply(&asked, &none), Some(Reply { code: 3, is_cut: true, records: vec![], ttl: None }));
        let mut cut = message(&asked, &[(28, 5, Ipv6Addr::LOCALHOST.octets().to_vec())]);
        cut[2] |= 2;
        cut.truncate(cut.len() - 3);
        assert!(reply(&asked, &cut).is_some_and(|reply| reply.is_cut), "in the middle of a record");
    }

    #[test]
    fn what_answers_another_question_is_no_answer() {
        let asked = question(7, "a.b", Kind::A).unwrap();
        for other in [question(8, "a.b", Kind::A), question(7, "a.c", Kind::A), question(7, "a.b", Kind::Aaaa)] {
            assert_eq!(reply(&asked, &message(&other.unwrap(), &[])), None);
        }
        assert_eq!(reply(&asked, &asked), None, "it is the question");
        assert!(reply(&asked, &message(&question(7, "A.b", Kind::A).unwrap(), &[])).is_some());
        for no_name in ["", "a..b", &"x".repeat(64), &"x.".repeat(130), "größe"] {
            assert_eq!(question(1, no_name, Kind::A), None, "{no_name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_stop_it(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0usize..3) {
            let kind = [Kind::A, Kind::Aaaa, Kind::Srv][kind];
            let asked = question(7, "a.b", kind).unwrap();
            let mut got = message(&asked, &[]);
            got[7] = 3;
            got.extend(&bytes);
            let _any = reply(&asked, &got);
            let _any = reply(&asked, &bytes);
        }
    }
}
