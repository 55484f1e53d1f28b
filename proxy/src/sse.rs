//! Incremental reader of a server-sent event stream that keeps the bytes.
//!
//! Chunks of any size go in; out come [`Frame`]s, each with exactly the bytes that made it up. The concatenation of
//! all frames and of [`SseParser::finish`] is the stream, byte for byte, whatever the chunking. A frame is handed out
//! as soon as its last line is complete: nothing waits for the next event.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One event, or one comment between events, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The bytes as received, line ends included.
    pub raw: Bytes,
    /// Where the values of the `data` lines lie in `raw`; empty for a frame without data.
    data: Vec<Range<usize>>,
}

impl Frame {
    /// The event's data, its lines joined by line feeds; `None` for a comment or an event without data.
    /// Bytes that are not UTF-8 become replacement characters (in this view only).
    pub fn data(&self) -> Option<Cow<'_, str>> {
        match self.data.as_slice() {
            [] => None,
            [line] => Some(String::from_utf8_lossy(&self.raw[line.clone()])),
            lines => {
                let lines: Vec<_> = lines
                    .iter()
                    .map(|line| String::from_utf8_lossy(&self.raw[line.clone()]))
                    .collect();
                Some(Cow::Owned(lines.join("\n")))
            }
        }
    }

    /// The frame's bytes with other data; all else, such as `id` lines before and after, stays. Where the data was
    /// spread over several lines, what lies between these lines goes with them.
    pub fn with_data(&self, data: &str) -> Bytes {
        let (Some(first), Some(last)) = (self.data.first(), self.data.last()) else {
            return self.raw.clone();
        };
        let mut edited = BytesMut::with_capacity(self.raw.len() + data.len());
        edited.extend_from_slice(&self.raw[..first.start]);
        for (index, line) in data.split('\n').enumerate() {
            if index > 0 {
                edited.extend_from_slice(b"\ndata: ");
            }
            edited.extend_from_slice(line.as_bytes());
        }
        edited.extend_from_slice(&self.raw[last.end..]);
        edited.freeze()
    }
}

/// The state of one stream between chunks.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The bytes of the frame that is being read.
    buffer: BytesMut,
    /// Up to here `buffer` has been searched for line ends.
    searched: usize,
    /// Where the current line begins in `buffer`.
    line_start: usize,
    data: Vec<Range<usize>>,
    /// The frame has a line other than comments.
    has_field: bool,
    /// The last line ended with a carriage return at the end of a chunk: a line feed may follow that belongs to it.
    after_carriage_return: bool,
    /// The start of the stream, where a byte order mark may stand, has been dealt with.
    started: bool,
}

impl SseParser {
    /// Takes the next bytes and appends the frames that they complete to `frames`.
    pub fn push(&mut self, chunk: &[u8], frames: &mut Vec<Frame>) {
        self.buffer.extend_from_slice(chunk);
        if !self.started && !self.start() {
            return;
        }
        while let Some(&byte) = self.buffer.get(self.searched) {
            if std::mem::take(&mut self.after_carriage_return) && byte == b'\n' {
                self.searched += 1;
                self.line_start = self.searched;
                continue;
            }
            let Some(length) = self.buffer[self.searched..]
                .iter()
                .position(|byte| matches!(byte, b'\r' | b'\n'))
            else {
                self.searched = self.buffer.len();
                return;
            };
            let line = self.line_start..self.searched + length;
            self.searched = line.end + 1;
            if self.buffer[line.end] == b'\r' {
                match self.buffer.get(self.searched) {
                    Some(b'\n') => self.searched += 1,
                    Some(_) => {}
                    None => self.after_carriage_return = true,
                }
            }
            self.line_start = self.searched;
            if self.line_ends_frame(line) {
                frames.push(self.take_frame());
            }
        }
    }

    /// What is left when the stream has ended: bytes after the last complete frame. By the standard an event that is
    /// not closed by an empty line does not count, but it is handed out with its data, since some servers omit that
    /// line after the last event.
    pub fn finish(mut self) -> Option<Frame> {
        let line = self.line_start..self.buffer.len();
        if !line.is_empty() {
            self.read_line(line);
        }
        self.searched = self.buffer.len();
        (!self.buffer.is_empty()).then(|| self.take_frame())
    }

    /// Steps over a byte order mark; false where more bytes are needed to know.
    fn start(&mut self) -> bool {
        if self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.searched = BYTE_ORDER_MARK.len();
            self.line_start = self.searched;
        } else if BYTE_ORDER_MARK.starts_with(&self.buffer) {
            return false;
        }
        self.started = true;
        true
    }

    /// Whether the frame ends with this line: an empty one closes an event, a comment outside an event stands alone.
    fn line_ends_frame(&mut self, line: Range<usize>) -> bool {
        if line.is_empty() {
            return true;
        }
        let is_comment = self.buffer[line.start] == b':';
        self.read_line(line);
        is_comment && !self.has_field
    }

    fn read_line(&mut self, line: Range<usize>) {
        let text = &self.buffer[line.clone()];
        if text.starts_with(b":") {
            return;
        }
        self.has_field = true;
        let value = match text.strip_prefix(b"data") {
            Some([]) => line.end..line.end,
            Some([b':', b' ', ..]) => line.start + 6..line.end,
            Some([b':', ..]) => line.start + 5..line.end,
            _ => return,
        };
        self.data.push(value);
    }

    fn take_frame(&mut self) -> Frame {
        let raw = self.buffer.split_to(self.searched).freeze();
        self.searched = 0;
        self.line_start = 0;
        self.has_field = false;
        Frame {
            raw,
            data: std::mem::take(&mut self.data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(chunks: &[&[u8]]) -> Vec<Frame> {
        let mut parser = SseParser::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            parser.push(chunk, &mut frames);
        }
        frames.extend(parser.finish());
        frames
    }

    fn data(frames: &[Frame]) -> Vec<String> {
        frames
            .iter()
            .filter_map(|frame| Some(frame.data()?.into_owned()))
            .collect()
    }

    #[test]
    fn forms_of_the_standard() {
        let stream = "\u{feff}data: a\n\n: ping\ndata:b\r\n\r\ndata: c\ndata:  d\nid: 1\n\ndata\n\nevent: x\n\ndata: é\r\rdata: e";
        let frames = parse(&[stream.as_bytes()]);
        assert_eq!(data(&frames), ["a", "b", "c\n d", "", "é", "e"]);
        assert_eq!(frames[1].raw, ": ping\n", "a comment stands alone");
    }

    #[test]
    fn an_event_is_out_as_soon_as_its_empty_line_is() {
        let mut parser = SseParser::default();
        let mut frames = Vec::new();
        parser.push(b"data: a\r\n\r", &mut frames);
        assert_eq!(data(&frames), ["a"]);
        parser.push(b"\ndata: b\n\n", &mut frames);
        assert_eq!(data(&frames), ["a", "b"]);
    }

    #[test]
    fn other_data_leaves_the_other_lines() {
        let frames = parse(&[b"id: 7\ndata: {\"a\":1,\ndata: \"b\":2}\nevent: x\n\n"]);
        assert_eq!(frames[0].data().unwrap(), "{\"a\":1,\n\"b\":2}");
        assert_eq!(frames[0].with_data("{\n}"), "id: 7\ndata: {\ndata: }\nevent: x\n\n");
    }

    proptest! {
        /// Whatever the chunking, the same events come out and no byte is lost.
        #[test]
        fn any_split_gives_the_same(
            pieces in prop::collection::vec(
                prop_oneof![
                    Just("data: "), Just("data:"), Just("data"), Just(":"), Just("\n"), Just("\r\n"), Just("\r"),
                    Just("\n\n"), Just("event: x"), Just("ü€𝄞"), Just("{\"a\":1}"), Just("\u{feff}"), Just(" "),
                ],
                0..24,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stream = pieces.concat().into_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let frames = parse(&chunks);
            prop_assert_eq!(data(&frames), data(&parse(&[&stream])));
            prop_assert_eq!(frames.iter().flat_map(|frame| frame.raw.to_vec()).collect::<Vec<u8>>(), stream);
        }
    }
}
