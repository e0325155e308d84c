//! An event stream as the standard has it (WHATWG HTML, section 9.2.6), read as a whole: slow, and plain to see.

/// What the standard calls an event: its type and its data, if it has any.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// The longest line that told of data: a reader with a bound may refuse it.
    pub(crate) longest_line: usize,
}

/// The events of a stream.
pub(crate) fn events(stream: &[u8]) -> Vec<Event> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (mut events, mut event, mut has_data) = (Vec::new(), Event::default(), false);
    for line in lines(stream) {
        if line.is_empty() {
            let done = std::mem::take(&mut event);
            if std::mem::take(&mut has_data) {
                events.push(done);
            }
            continue;
        }
        let colon = line.iter().position(|c| *c == b':');
        let (field, value) = colon.map_or((line, &b""[..]), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => event.name = value.to_vec(),
            b"data" => {
                if std::mem::replace(&mut has_data, true) {
                    event.data.push(b'\n');
                }
                event.data.extend_from_slice(value);
                event.longest_line = event.longest_line.max(line.len());
            }
            _ => {}
        }
    }
    events
}

/// The lines that have an end.
fn lines(mut text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while let Some(end) = text.iter().position(|c| matches!(c, b'\n' | b'\r')) {
        lines.push(&text[..end]);
        let is_pair = text[end..].starts_with(b"\r\n");
        text = &text[end + if is_pair { 2 } else { 1 }..];
    }
    lines
}
