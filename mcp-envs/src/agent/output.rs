//! Reading what an agent prints, within a limit.

use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;

/// One stream of an agent's output, kept up to a limit.
pub(super) struct Capture {
    pipe: pipe::Receiver,
    bytes: Vec<u8>,
    limit: usize,
    open: bool,
}

impl Capture {
    /// A capture and the end to write into.
    pub(super) fn new(limit: usize) -> std::io::Result<(Self, OwnedFd)> {
        let (reader, writer) = std::io::pipe()?;
        let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        Ok((
            Self {
                pipe,
                bytes: Vec::new(),
                limit,
                open: true,
            },
            OwnedFd::from(writer),
        ))
    }

    /// False after the last writer has closed its end.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// True when more than the limit was written; the rest is lost.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() > self.limit
    }

    /// Reads what is there, at least one byte or the end. Can be cancelled without loss.
    pub(super) async fn read(&mut self) {
        let room = (self.limit + 1).saturating_sub(self.bytes.len()).min(CHUNK);
        match (&mut self.pipe).take(room as u64).read_buf(&mut self.bytes).await {
            Ok(n_bytes) if n_bytes > 0 => {}
            _ => self.open = false,
        }
    }

    /// Reads up to the end or the limit.
    pub(super) async fn drain(&mut self) {
        while self.open && !self.is_full() {
            self.read().await;
        }
    }

    /// What was kept; bytes that are not UTF-8 are replaced.
    pub(super) fn into_text(mut self) -> String {
        self.bytes.truncate(self.limit);
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
