//! Forwards a streamed answer event by event while it is assembled for the record.
//!
//! Each event goes out as soon as it is complete. Only the end of the stream waits: `[DONE]`, and the end of the body,
//! are held back until the call is in the store.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use trajectory::CallStatus;

use crate::assemble::Assembler;
use crate::call::run::{Call, Interruption, next_data, respond};
use crate::error::ApiError;
use crate::sse::{Frame, SseParser};

/// Parts of an answer that may wait for an agent that reads slowly; then the upstream waits too.
const WAITING_PARTS: usize = 64;

/// Answers the agent with a stream, and feeds it to its end.
pub(super) async fn forward(
    mut call: Call,
    status: StatusCode,
    headers: HeaderMap,
    mut body: Incoming,
    reply: oneshot::Sender<Response>,
) {
    let episode = call.episode.clone();
    let (parts, receiver) = mpsc::channel(WAITING_PARTS);
    let stream = ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>);
    let _ = reply.send(respond(status, headers, Body::from_stream(stream)));
    let mut tee = Tee {
        parser: SseParser::default(),
        assembler: Assembler::new(call.plan.keep),
        end: BytesMut::new(),
    };
    let ended = loop {
        let next = next_data(&mut body, &call.plan.upstream);
        match call.interruptible(parts.closed(), next).await {
            Ok(Some(data)) => {
                call.draft.answer_began();
                let part = tee.take(&data, &call);
                if part.is_empty() {
                    continue;
                }
                tokio::select! {
                    biased;
                    sent = parts.send(part) => if sent.is_err() { break Err(Interruption::HungUp) },
                    () = call.episode.closing.cancelled() => break Err(Interruption::Closed),
                }
            }
            Ok(None) => break Ok(()),
            Err(interruption) => break Err(interruption),
        }
    };
    // Closes the connection to an upstream that has not finished, which tells it to stop sampling.
    drop(body);
    let is_done = !tee.end.is_empty();
    let Tee {
        parser,
        mut assembler,
        end: mut last,
    } = tee;
    if let (Ok(()), Some(rest)) = (&ended, parser.finish()) {
        last.extend_from_slice(&forwarded(&rest, &mut assembler, &call));
    }
    let finished = is_done || assembler.finished();
    let reported = assembler.error().map(str::to_owned);
    let answer = assembler.finish();
    match (ended, reported) {
        (_, Some(error)) => {
            let error = format!("upstream `{}` reported: {error}", call.plan.upstream.name);
            call.upstream_failed(&error).await;
            call.record(CallStatus::Failed, answer, Some(error)).await;
        }
        // Some agents hang up as soon as they have read the last finish reason.
        (Ok(()) | Err(Interruption::HungUp), None) if finished => call.record(CallStatus::Complete, answer, None).await,
        (Err(Interruption::HungUp), None) => call.record(CallStatus::Aborted, answer, None).await,
        (Err(Interruption::Closed), None) => {
            last.extend_from_slice(&error_event(&call.ended()));
            call.record(CallStatus::Aborted, answer, Some("the episode closed".into()))
                .await;
        }
        (Ok(()), None) => {
            let error = ApiError::upstream(format!("upstream `{}` ended its answer early", call.plan.upstream.name));
            last.extend_from_slice(&error_event(&error));
            call.upstream_failed(&error.message).await;
            call.record(CallStatus::Failed, answer, Some(error.message)).await;
        }
        (Err(Interruption::Upstream(error)), None) => {
            last.extend_from_slice(&error_event(&error));
            call.upstream_failed(&error.message).await;
            call.record(CallStatus::Failed, answer, Some(error.message)).await;
        }
    }
    if !last.is_empty() {
        // The record is made; an agent that has gone, or reads nothing until its episode closes, misses nothing.
        tokio::select! {
            biased;
            _ = parts.send(last.freeze()) => {}
            () = episode.closing.cancelled() => {}
        }
    }
}

/// One stream, split into what goes out now and what waits for the record.
struct Tee {
    parser: SseParser,
    assembler: Assembler,
    /// `[DONE]` and whatever follows it.
    end: BytesMut,
}

impl Tee {
    /// Takes bytes of the upstream; returns those that go to the agent now.
    fn take(&mut self, data: &[u8], call: &Call) -> Bytes {
        let mut frames = Vec::new();
        self.parser.push(data, &mut frames);
        // The usual case: one event a part, and no copy.
        if let [frame] = frames.as_slice()
            && self.end.is_empty()
            && !is_done(frame)
        {
            return forwarded(frame, &mut self.assembler, call);
        }
        let mut now = BytesMut::with_capacity(data.len());
        for frame in &frames {
            if self.end.is_empty() && !is_done(frame) {
                now.extend_from_slice(&forwarded(frame, &mut self.assembler, call));
            } else {
                self.end.extend_from_slice(&frame.raw);
            }
        }
        now.freeze()
    }
}

/// The frame as the agent gets it, after its data went to the assembler.
fn forwarded(frame: &Frame, assembler: &mut Assembler, call: &Call) -> Bytes {
    let Some(data) = frame.data() else {
        return frame.raw.clone();
    };
    let Ok(chunk) = serde_json::from_str::<Value>(&data) else {
        return frame.raw.clone();
    };
    assembler.push(chunk);
    match call.plan.edit.apply(&data) {
        std::borrow::Cow::Borrowed(_) => frame.raw.clone(),
        std::borrow::Cow::Owned(edited) => frame.with_data(&edited),
    }
}

fn is_done(frame: &Frame) -> bool {
    frame.data().is_some_and(|data| data.trim() == "[DONE]")
}

fn error_event(error: &ApiError) -> Vec<u8> {
    format!("data: {}\n\n", error.body()).into_bytes()
}
