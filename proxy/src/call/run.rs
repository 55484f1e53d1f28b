//! Sends a planned call and brings back the answer.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use trajectory::{CallStatus, Failure, FailureCause};

use crate::assemble::{Assembled, read_completion};
use crate::call::draft::Draft;
use crate::call::plan::Plan;
use crate::call::stream;
use crate::episodes::LiveEpisode;
use crate::error::ApiError;
use crate::state::{App, messages};
use crate::threads;
use crate::upstream::{Upstream, end_to_end};

/// Names the recorded call on every answer.
pub(crate) const CALL_HEADER: HeaderName = HeaderName::from_static("x-trainyard-call");

/// Refusals that say that the server is set up wrongly (a missing adapter, a wrong key), not that the agent's request
/// is wrong.
const OUR_FAULTS: [StatusCode; 3] = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND];

/// A call on its way.
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) episode: Arc<LiveEpisode>,
    pub(crate) plan: Plan,
    pub(crate) draft: Draft,
    /// The caller's key where the episode is implicit: its conversation is remembered under it.
    pub(crate) thread: Option<String>,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Why a call did not come to its end.
pub(crate) enum Interruption {
    /// The agent hung up.
    HungUp,
    /// The episode closed, or the proxy stops.
    Closed,
    /// The upstream failed.
    Upstream(ApiError),
}

impl Call {
    /// Runs the call in a task of its own and waits for the head of its answer.
    pub(crate) async fn run(self, headers: HeaderMap) -> Response {
        let call_header = HeaderValue::try_from(self.draft.id.as_str()).ok();
        let (reply, answer) = oneshot::channel();
        let episode = self.episode.clone();
        episode.calls.spawn(self.drive(headers, reply));
        let mut response = answer
            .await
            .unwrap_or_else(|_| ApiError::internal("the call ended without an answer").into_response());
        if let Some(id) = call_header {
            response.headers_mut().insert(CALL_HEADER, id);
        }
        response
    }

    async fn drive(mut self, headers: HeaderMap, mut reply: oneshot::Sender<Response>) {
        let request = match self.upstream_request(&headers) {
            Ok(request) => request,
            Err(error) => return drop(reply.send(error.into_response())),
        };
        let asked = self.ask(request);
        let answer = self.interruptible(reply.closed(), asked).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(interruption) => return self.interrupted(interruption, reply).await,
        };
        let (head, body) = answer.into_parts();
        self.draft.upstream_status = Some(head.status.as_u16());
        let mut headers = end_to_end(&head.headers);
        if head.status.is_success() && is_event_stream(&headers) {
            headers.remove(header::CONTENT_LENGTH);
            return stream::forward(self, head.status, headers, body, reply).await;
        }
        let whole = self
            .interruptible(reply.closed(), collect(body, &self.plan.upstream))
            .await;
        match whole {
            Ok(body) => self.whole_answer(head.status, headers, body, reply).await,
            Err(interruption) => self.interrupted(interruption, reply).await,
        }
    }

    fn upstream_request(&self, from_agent: &HeaderMap) -> Result<Request<Full<Bytes>>, ApiError> {
        let mut headers = self.plan.upstream.request_headers(from_agent, &self.app.guard);
        // The answer has to be read here, so it must come uncompressed.
        headers.remove(header::ACCEPT_ENCODING);
        let mut request = Request::new(Full::new(self.plan.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.plan.upstream.uri("/v1/chat/completions")?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn ask(&self, request: Request<Full<Bytes>>) -> impl Future<Output = Result<Response<Incoming>, ApiError>> + use<> {
        let asked = self.app.client.request(request);
        let (name, timeout) = (self.plan.upstream.name.clone(), self.plan.upstream.timeout);
        async move {
            match tokio::time::timeout(timeout, asked).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => Err(ApiError::upstream(format!(
                    "upstream `{name}` can't be reached: {}",
                    causes(&error)
                ))),
                Err(_) => Err(silent(&name, timeout)),
            }
        }
    }

    /// Awaits the upstream until the agent hangs up or the episode ends.
    pub(crate) async fn interruptible<T>(
        &self,
        hung_up: impl Future<Output = ()>,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, Interruption> {
        tokio::select! {
            biased;
            done = work => done.map_err(Interruption::Upstream),
            () = hung_up => Err(Interruption::HungUp),
            () = self.episode.closing.cancelled() => Err(Interruption::Closed),
        }
    }

    /// An answer that was not streamed: recorded, then passed on.
    async fn whole_answer(
        self,
        status: StatusCode,
        mut headers: HeaderMap,
        body: Bytes,
        reply: oneshot::Sender<Response>,
    ) {
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        if !status.is_success() {
            return self.refused(status, headers, body, answer, reply).await;
        }
        let Some(answer) = answer.filter(Value::is_object) else {
            let error = ApiError::upstream(format!(
                "upstream `{}` sent an answer that is not JSON",
                self.plan.upstream.name
            ));
            return self.interrupted(Interruption::Upstream(error), reply).await;
        };
        let assembled = read_completion(&answer, self.plan.keep);
        let edited = match std::str::from_utf8(&body) {
            Ok(text) if !self.plan.edit.is_identity() => Bytes::from(self.plan.edit.apply(text).into_owned()),
            _ => body,
        };
        headers.insert(header::CONTENT_LENGTH, edited.len().into());
        let mut this = self;
        this.draft.answer_began();
        this.record(CallStatus::Complete, assembled, None).await;
        let _ = reply.send(respond(status, headers, Body::from(edited)));
    }

    /// An error answer. The upstream's own words are passed on where they have the form that clients read.
    async fn refused(
        self,
        status: StatusCode,
        mut headers: HeaderMap,
        body: Bytes,
        answer: Option<Value>,
        reply: oneshot::Sender<Response>,
    ) {
        let name = self.plan.upstream.name.clone();
        let in_form = answer.as_ref().is_some_and(|answer| answer.get("error").is_some());
        let error = format!("upstream `{name}` answered {status}");
        let is_theirs = status.is_server_error() || OUR_FAULTS.contains(&status);
        let assembled = Assembled {
            response: answer,
            ..Assembled::default()
        };
        if is_theirs {
            self.upstream_failed(&error).await;
        }
        self.record(CallStatus::Failed, assembled, Some(error.clone())).await;
        let response = if in_form || !status.is_server_error() {
            headers.insert(header::CONTENT_LENGTH, body.len().into());
            respond(status, headers, Body::from(body))
        } else {
            ApiError::upstream(error).into_response()
        };
        let _ = reply.send(response);
    }

    /// The call ended before there was anything to pass on.
    async fn interrupted(self, interruption: Interruption, reply: oneshot::Sender<Response>) {
        match interruption {
            Interruption::HungUp => self.record(CallStatus::Aborted, Assembled::default(), None).await,
            Interruption::Closed => {
                let ended = self.ended();
                self.record(
                    CallStatus::Aborted,
                    Assembled::default(),
                    Some("the episode closed".into()),
                )
                .await;
                let _ = reply.send(ended.into_response());
            }
            Interruption::Upstream(error) => {
                self.upstream_failed(&error.message).await;
                self.record(CallStatus::Failed, Assembled::default(), Some(error.message.clone()))
                    .await;
                let _ = reply.send(error.into_response());
            }
        }
    }

    /// What an agent is told whose call was ended here.
    pub(crate) fn ended(&self) -> ApiError {
        if self.app.stopping.is_cancelled() {
            ApiError::shutting_down()
        } else {
            ApiError::episode_closed(self.episode.id.as_str())
        }
    }

    /// The upstream's failure is a hole in the episode.
    pub(crate) async fn upstream_failed(&self, error: &str) {
        self.episode.note_failure(Failure {
            cause: FailureCause::Upstream,
            message: error.to_owned(),
        });
        self.app.recorder.taint(&self.episode, error).await;
    }

    /// Writes the record; returns when it is in the store.
    pub(crate) async fn record(self, status: CallStatus, answer: Assembled, error: Option<String>) {
        let Self {
            app,
            episode,
            plan,
            draft,
            thread,
            permit,
        } = self;
        if plan.version().is_some()
            && let Some(defect) = &answer.defect
        {
            app.recorder.taint(&episode, defect).await;
        }
        if let (Some(caller), CallStatus::Complete) = (thread, status)
            && let Some(message) = answer
                .response
                .as_ref()
                .and_then(|answer| answer.pointer("/choices/0/message"))
        {
            let end = threads::end_hash(&caller, messages(draft.request()), message);
            app.threads.remember(end, &episode.id);
        }
        let call = draft.finish(&plan, status, answer, error);
        app.recorder.append_call(&episode, call).await;
        episode.touch();
        drop((plan, permit));
    }
}

/// The whole body; the upstream's timeout bounds the wait for each part.
async fn collect(mut body: Incoming, upstream: &Upstream) -> Result<Bytes, ApiError> {
    let mut collected = BytesMut::new();
    while let Some(data) = next_data(&mut body, upstream).await? {
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}

/// The next bytes of an upstream's answer; `None` at its end.
pub(crate) async fn next_data(body: &mut Incoming, upstream: &Upstream) -> Result<Option<Bytes>, ApiError> {
    loop {
        match tokio::time::timeout(upstream.timeout, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(error))) => {
                return Err(ApiError::upstream(format!(
                    "the answer of upstream `{}` broke off: {}",
                    upstream.name,
                    causes(&error)
                )));
            }
            Ok(None) => return Ok(None),
            Err(_) => return Err(silent(&upstream.name, upstream.timeout)),
        }
    }
}

fn silent(name: &str, timeout: std::time::Duration) -> ApiError {
    let mut error = ApiError::upstream(format!("upstream `{name}` was silent for {} s", timeout.as_secs_f64()));
    (error.status, error.code) = (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout");
    error
}

/// An error with its causes, for people.
fn causes(error: &dyn std::error::Error) -> String {
    let chain: Vec<String> = std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect();
    chain.join(": ")
}

pub(crate) fn respond(status: StatusCode, headers: HeaderMap, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    kind.split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream"))
}
