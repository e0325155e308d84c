//! How a process writes down what it knows for the one that follows it: the format of a snapshot, in one place. Pure.
//!
//! Numbers are little-endian and of fixed size, a list is preceded by its length, a struct is its fields in order; the
//! types say which beside their own code (`record`). A frame around all of it carries the version of the layout and
//! a checksum. **Reading never fails loudly**: what is cut, altered or of another version is `None`, and nothing is
//! allocated for more items than there are bytes.
//!
//! A serialisation crate was considered and refused: one that is in the tree already (MessagePack, by way of Pingora)
//! would want a derive on every type of the pure layers and a second struct wherever slots are to be mapped, for what
//! is a page of code here.

use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

/// The version of the layout: of every `record` and of every hand-written [`Pack`] together, but for what has its own.
pub const VERSION: u32 = 6;
/// The version of what may not be lost between two others: operators' orders, and what runs in another process.
pub const LASTING: u32 = 1;
const MAGIC: &[u8; 8] = b"ramjet\0s";
/// Before the content: magic, version, checksum.
const HEAD: usize = MAGIC.len() + size_of::<u32>() + size_of::<u64>();

/// What can be written down and read again.
pub trait Pack: Sized {
    /// Appends it.
    fn pack(&self, out: &mut Vec<u8>);

    /// Takes it from the beginning of `from`.
    fn unpack(from: &mut &[u8]) -> Option<Self>;
}

/// A whole frame around `value`.
pub fn seal(value: &impl Pack) -> Vec<u8> {
    seal_as(VERSION, value)
}

/// The same of another version.
pub fn seal_as(version: u32, value: &impl Pack) -> Vec<u8> {
    let mut out = vec![0; HEAD];
    value.pack(&mut out);
    let sum = xxh3_64(&out[HEAD..]);
    out.splice(..HEAD, MAGIC.iter().copied().chain(version.to_le_bytes()).chain(sum.to_le_bytes()));
    out
}

/// The value in a frame, if it is whole and of this version.
pub fn open<T: Pack>(frame: &[u8]) -> Option<T> {
    open_as(VERSION, frame)
}

/// The same of another version.
pub fn open_as<T: Pack>(version: u32, frame: &[u8]) -> Option<T> {
    let (magic, mut rest) = frame.split_first_chunk()?;
    let (written, sum) = (u32::unpack(&mut rest)?, u64::unpack(&mut rest)?);
    if magic != MAGIC || written != version || sum != xxh3_64(rest) {
        return None;
    }
    let value = T::unpack(&mut rest)?;
    rest.is_empty().then_some(value)
}

/// Makes a struct of packed fields packable.
macro_rules! record {
    ($name:ty { $($field:ident),+ }) => {
        impl $crate::pack::Pack for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                $( $crate::pack::Pack::pack(&self.$field, out); )+
            }

            fn unpack(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $( $field: $crate::pack::Pack::unpack(from)?, )+ })
            }
        }
    };
}
pub(crate) use record;

macro_rules! numbers {
    ($($number:ty),+) => { $(
        impl Pack for $number {
            fn pack(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn unpack(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$number>::from_le_bytes(*bytes))
            }
        }
    )+ };
}

numbers!(u8, u16, u32, u64, f32, f64);

impl Pack for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        u8::from(*self).pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some(u8::unpack(from)? != 0)
    }
}

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        if let Some(value) = self {
            value.pack(out);
        }
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some(if bool::unpack(from)? { Some(T::unpack(from)?) } else { None })
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let count = usize::try_from(u64::unpack(from)?).ok()?;
        // each takes a byte at least
        let mut items = Vec::with_capacity(count.min(from.len() / size_of::<T>().max(1)));
        for _ in 0..count {
            items.push(T::unpack(from)?);
        }
        Some(items)
    }
}

impl<T: Pack> Pack for VecDeque<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Vec::unpack(from).map(VecDeque::from)
    }
}

impl Pack for String {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(u64::unpack(from)?).ok()?;
        let (text, rest) = from.split_at_checked(length)?;
        *from = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl<T: Pack, const N: usize> Pack for [T; N] {
    fn pack(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let items: Option<Vec<T>> = (0..N).map(|_| T::unpack(from)).collect();
        items?.try_into().ok()
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
        self.1.pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some((A::unpack(from)?, B::unpack(from)?))
    }
}

impl<A: Pack, B: Pack, C: Pack> Pack for (A, B, C) {
    fn pack(&self, out: &mut Vec<u8>) {
        self.0.pack(out);
        self.1.pack(out);
        self.2.pack(out);
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        Some((A::unpack(from)?, B::unpack(from)?, C::unpack(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_version_is_not_read_and_what_lasts_is_whatever_the_version() {
        let lasting = seal_as(LASTING, &7u64);
        assert_eq!((open::<u64>(&lasting), open_as::<u64>(LASTING, &lasting)), (None, Some(7)));
        assert_eq!(open_as::<u64>(VERSION + 1, &seal(&7u64)), None);
    }

    type Sample = (Vec<(u64, f64)>, Option<String>, Vec<(u16, bool, u32)>);

    proptest! {
        #[test]
        fn what_is_written_is_read_and_what_is_altered_is_not(
            numbers in prop::collection::vec((any::<u64>(), -1e9f64..1e9), 0..20),
            text in prop::option::of(".{0,20}"),
            flags in prop::collection::vec((any::<u16>(), any::<bool>(), any::<u32>()), 0..20),
            at in any::<prop::sample::Index>(),
        ) {
            let value: Sample = (numbers, text, flags);
            let frame = seal(&value);
            prop_assert_eq!(open::<Sample>(&frame), Some(value));
            let at = at.index(frame.len());
            prop_assert_eq!(open::<Sample>(&frame[..at]), None);
            let mut altered = frame.clone();
            altered[at] ^= 1;
            prop_assert_eq!(open::<Sample>(&altered), None);
        }

        #[test]
        fn anything_at_all_is_read_without_a_panic_and_without_much_memory(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _whatever = Sample::unpack(&mut bytes.as_slice());
        }
    }

    #[test]
    fn a_length_beyond_the_bytes_allocates_nothing_of_that_size() {
        assert_eq!(Vec::<u64>::unpack(&mut &u64::MAX.to_le_bytes()[..]), None);
        assert_eq!(String::unpack(&mut &u64::MAX.to_le_bytes()[..]), None);
    }
}
