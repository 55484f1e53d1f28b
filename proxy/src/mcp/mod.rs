//! The MCP gateway of an episode: each tool server is a Streamable HTTP endpoint, with a process of the server behind it
//! that belongs to this episode alone.
//!
//! [`relay`] passes JSON-RPC messages between the two and records tool calls; [`process`] owns the child process and
//! its group. Messages pass unread except for what the gateway must know: ids are renumbered (several clients of one
//! episode may use the same), a second `initialize` is answered from the first, and requests that a server makes of its
//! client are declined, since an answer of the gateway carries no such requests.

mod process;
mod relay;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::config::McpServerConfig;

pub(crate) use relay::Session;

/// The sessions of one episode by server name.
#[derive(Default)]
pub(crate) struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_name: HashMap<String, Arc<Session>>,
    closed: bool,
}

impl Sessions {
    /// The session with that server; `None` after the episode has closed.
    pub(crate) async fn get(&self, config: &Arc<McpServerConfig>) -> Option<Arc<Session>> {
        let mut inner = self.inner.lock().await;
        if inner.closed {
            return None;
        }
        let session = inner
            .by_name
            .entry(config.name.clone())
            .or_insert_with(|| Arc::new(Session::new(config.clone())));
        Some(session.clone())
    }

    /// Ends all processes; returns when their groups are gone.
    pub(crate) async fn shut_down(&self) {
        let sessions: Vec<_> = {
            let mut inner = self.inner.lock().await;
            inner.closed = true;
            inner.by_name.drain().map(|(_, session)| session).collect()
        };
        futures_util::future::join_all(sessions.iter().map(|session| session.shut_down())).await;
    }
}
