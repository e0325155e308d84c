//! As much of HTTP/1.1 as a load generator needs that must cost next to nothing: where a message ends. Pure.

use memchr::memmem;

/// Where the bytes of an answer stand.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Progress {
    /// more must come
    Partial,
    /// so many bytes are the whole answer, under this status
    Whole(usize, u16),
    /// nothing that can be read
    Broken,
}

/// How the body of a message is framed.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    None,
}

/// Bytes of the head with its empty line, once that is there.
pub(crate) fn head_length(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// How the body behind this head is framed.
pub(crate) fn framing(head: &[u8]) -> Framing {
    if let Some(length) = field(head, b"content-length").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok()) {
        return Framing::Length(length);
    }
    match field(head, b"transfer-encoding") {
        Some(value) if value.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        _ => Framing::None,
    }
}

/// The value of a header field.
fn field<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|c| *c == b'\n').find_map(|line| {
        let rest = line.get(name.len()..)?;
        (line[..name.len()].eq_ignore_ascii_case(name) && rest.first() == Some(&b':')).then(|| rest[1..].trim_ascii())
    })
}

/// The status of an answer.
pub(crate) fn status(head: &[u8]) -> Option<u16> {
    std::str::from_utf8(head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()?.parse().ok()
}

/// How far an answer is. Its end in chunks is looked for where it must be, so nothing may follow it.
pub(crate) fn progress(bytes: &[u8]) -> Progress {
    let Some(head) = head_length(bytes) else { return Progress::Partial };
    let Some(status) = status(bytes) else { return Progress::Broken };
    match framing(&bytes[..head]) {
        Framing::Length(length) if bytes.len() >= head + length => Progress::Whole(head + length, status),
        Framing::Chunked if bytes.ends_with(b"0\r\n\r\n") => Progress::Whole(bytes.len(), status),
        Framing::None => Progress::Broken,
        Framing::Length(_) | Framing::Chunked => Progress::Partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_its_framing_says() {
        let sized = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        for at in 0..sized.len() {
            assert_eq!(progress(&sized[..at]), Progress::Partial, "{at}");
        }
        assert_eq!(progress(sized), Progress::Whole(sized.len(), 200));
        let chunked = b"HTTP/1.1 503 x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        assert_eq!(progress(&chunked[..60]), Progress::Partial);
        assert_eq!(progress(chunked), Progress::Whole(chunked.len(), 503));
    }

    #[test]
    fn what_has_no_end_is_broken() {
        assert_eq!(progress(b"HTTP/1.1 200 OK\r\n\r\n"), Progress::Broken);
        assert_eq!(progress(b"hello\r\n\r\n"), Progress::Broken);
        assert_eq!(framing(b"POST / HTTP/1.1\r\nx-content-length: 1\r\n\r\n"), Framing::None);
    }
}
